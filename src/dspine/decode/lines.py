"""A round in which candidates are one line a row.

One rule: what is verified is chosen before the target is asked, and no row is given anything until the verdict on all
of them is there. Source: DSpine (arXiv 2609.36173), section on speculative decoding.

With the anchor of each row at position s: draft candidates for s+1..s+M; choose how many, n, to verify (before the
draft, or by the confidences that come with it; none may mean no draft at all); run anchor and candidates through the
target at slots s..s+n; judge; the a candidates that stand and the target's own token become x_{s+1}..x_{s+a+1}; the
drafter observes the features of slots s..s+a. Then s' = s+a+1 is the number of slots in both caches again, one less
than the number of tokens: the new anchor has neither key nor feature yet. In rounds without candidates the drafter
rests; the features wait in the backlog until it drafts again.

A row whose candidates are looked up in its own text (`decode/lookup.py`) is not drafted in that round; where all rows
are such, nothing is.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from dspine.decode.active import Active
from dspine.decode.judge import judge
from dspine.decode.noise import uniform_rows
from dspine.decode.rows import Row
from dspine.decode.schedule import Seat
from dspine.drafter.proposal import Proposal
from dspine.kernels.kv import Span
from dspine.stages import stage


def advance(active: Active) -> None:
    """Run one round; the target's cache holds all that lies before the anchors."""
    rows, anchors = active.rows, active.anchors
    starts = [row.position for row in rows]
    offers = active.offers.made(rows, active.known)
    found, seats = active.offers.followed(offers, active.seats)
    drafted = active.schedule.lengths(seats)
    proposal, drafting = _propose(active, anchors, max(drafted)), any(drafted)
    drafted = _cut(active, seats, drafted, proposal.confidence)
    proposal = proposal.places(max(drafted))
    if any(found):
        proposal = proposal.given(found)
    lengths = [len(candidates) or length for candidates, length in zip(found, drafted, strict=True)]
    with stage("verify/forward"):
        ids = torch.cat((anchors[:, None], proposal.tokens), dim=1)  # (B, M+1)
        span = Span.of(0, starts, [length + 1 for length in lengths])
        out = active.forward(ids, active.cache, span, active.taps)
    rulings = judge(active.target, rows, active.mixture, out.hidden, proposal, lengths, active.kernels)
    with stage("commit/observe"):
        active.observe(ids, out.features, [ruling.accepted + 1 for ruling in rulings], drafted=drafting)
    with stage("commit/text"):
        for index, ruling in enumerate(rulings):
            held, looked_up = starts[index] + ruling.accepted + 1, bool(found[index])
            active.keep(index, held, ruling, lengths[index], 0, looked_up=looked_up)
    active.learn(seats, drafted, found, rulings)
    active.offers.learn(offers, rows, starts)


def make_keys(active: Active) -> None:
    """Make the keys that trees left to be made, since a line begins with the anchor.

    In a forward beside the rounds: a round for them would move those of rows whose tokens depend on theirs.
    """
    for index, (row, known) in enumerate(zip(active.rows, active.known, strict=True)):
        if len(known) > 1:
            ids = torch.tensor([known[:-1]], device=active.target.device)
            span = Span(index, (row.position - len(known) + 1,), ids.shape[1])
            with stage("verify/forward"):
                active.target.forward(ids, active.cache, span)
            active.cache.rows.commit(index, row.position)


def _propose(active: Active, anchors: Tensor, width: int) -> Proposal:
    """Draft a whole block a row, and keep its first `width` places; nothing is drafted if that is 0."""
    rows, context = active.rows, active.context
    if context is None or width == 0:
        return Proposal(anchors.new_empty((len(anchors), 0)))
    context.catch_up(rows)
    law, uniforms = active.mixture.law, None
    if not law.greedy:
        seeds = [_draft_seed(active, row) for row in rows]
        positions = [row.position + 1 for row in rows]
        uniforms = uniform_rows(seeds, "draft", positions, active.candidates, anchors.device)
    return context.drafter.propose(context.cache, 0, anchors, law, uniforms).places(width)


def _draft_seed(active: Active, row: Row) -> int:
    """What keys a row's draft: its own seed, or, where its number of candidates looks back, another every round."""
    return secrets.randbits(63) if row.own is None and active.schedule.looks_back else row.request.seed or 0


def _cut(active: Active, seats: Sequence[Seat], lengths: Sequence[int], confidence: Tensor | None) -> list[int]:
    """How many candidates to verify, now that they are drafted: by each row's own rule, then by the schedule."""
    asked = active.schedule.reads_confidence or any(seat.own is not None and seat.own.threshold for seat in seats)
    said: list[list[float]] | None = confidence.tolist() if asked and confidence is not None else None
    kept = [
        length if seat.own is None else seat.own.cut(length, None if said is None else said[index])
        for index, (seat, length) in enumerate(zip(seats, lengths, strict=True))
    ]
    return active.schedule.cut(seats, kept, said)
