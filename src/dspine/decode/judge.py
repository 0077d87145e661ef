"""From the target's hidden states to what each row of a batch keeps of its block.

One rule: greedy and sampled rows, drafted and plain ones, the first token and the thousandth take this one path; with
M = 0 candidates it is plain decoding. Only logits and their argmax are as wide as the vocabulary for a greedy row.
Source: DSpine (arXiv 2609.36173), section on speculative decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.decode.noise import uniform_rows
from dspine.decode.processors import Processed, mask_undecodable, token_logprobs
from dspine.decode.records import Logprob
from dspine.decode.rows import Row
from dspine.decode.sampling import law_of
from dspine.decode.verify import Verdict, verify, verify_greedy
from dspine.drafter.proposal import Proposal
from dspine.errors import TargetError
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.law import Law, law_probs, likeliest
from dspine.kernels.ragged import Ragged
from dspine.kernels.upload import upload
from dspine.stages import stage
from dspine.target.model import Target


@dataclass(frozen=True)
class Mixture:
    """How the rows of a batch draw: the law of all, which are greedy, which are sampled, and the law of the latter."""

    law: Law
    greedy: list[int]
    sampled: list[int]
    sampled_law: Law

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> Mixture:
        params = [row.request.params for row in rows]
        sampled = [index for index, p in enumerate(params) if not p.greedy]
        law = law_of(params, device)
        return cls(
            law=law,
            greedy=[index for index, p in enumerate(params) if p.greedy],
            sampled=sampled,
            sampled_law=law.rows(sampled),
        )


@dataclass(frozen=True)
class Ruling:
    """What a row gets from a round: how many candidates stand, then all its tokens, the target's own last.

    error: what ends the request behind these tokens, unless they end it themselves; the target adds none then.
    """

    accepted: int
    tokens: list[int]
    logprobs: list[Logprob]
    error: Exception | None = None


def judge(
    target: Target,
    rows: Sequence[Row],
    mixture: Mixture,
    hidden: Tensor,
    proposal: Proposal,
    lengths: Sequence[int],
    kernels: Kernels = REFERENCE,
) -> list[Ruling]:
    """Verify a block a row.

    A row whose own logits processor raises, or whose law is not a number, gets that error in its ruling, behind the
    tokens that plain decoding would have given it before; the others go on.

    Args:
        hidden: (B, M+1, d) final-normed hidden states at the anchor and the M candidates.
        proposal: M candidates a row; M may be 0.
        lengths: how many candidates of each row to verify, 0..M.
        kernels: whose arithmetic.
    """
    places, width = [length + 1 for length in lengths], hidden.shape[1]
    layout = Ragged(places if target.ragged else [width] * len(rows), width, hidden.device)
    with stage("verify/head"):
        raw = target.logits(layout.line(hidden))  # (N, V), N the places of all rows
    with stage("verify/law"):
        scores, faults = _processed(target, rows, raw, proposal, layout, lengths)
        choices = layout.rows(likeliest(scores)) if mixture.greedy else None  # (B, M+1)
        probs = _laws(scores, mixture, layout)
    with stage("verify/accept"):
        reached = [faults[row].places if row in faults else length for row, length in enumerate(lengths)]
        bounds = upload(reached, scores.device)
        verdict = _verdict(rows, mixture, choices, probs, proposal, bounds, kernels)
        columns = (verdict.accepted, verdict.next_token, _unnumbered(raw, verdict, layout))
        # The one place of a round where the host waits for the device.
        table: list[list[int]] = torch.cat((torch.stack(columns, dim=1), proposal.tokens), dim=1).tolist()
    return [
        _ruling(row, raw[layout.row(index)], faults.get(index), bool(unnumbered), [*drafts[:accepted], last])
        for index, (row, (accepted, last, unnumbered, *drafts)) in enumerate(zip(rows, table, strict=True))
    ]


def _processed(
    target: Target, rows: Sequence[Row], raw: Tensor, proposal: Proposal, layout: Ragged, lengths: Sequence[int]
) -> tuple[Tensor, dict[int, Processed]]:
    """Logits after every request's processing, (N, V), and the rows in which something was raised on the way.

    `raw` keeps its values if a row wants logprobs.
    """
    active = [index for index, row in enumerate(rows) if row.request.processor.active(row.generated)]
    if not active and target.decodable >= raw.shape[-1]:
        return raw, {}
    wanted = any(row.request.params.logprobs is not None for row in rows)
    dtype = torch.promote_types(raw.dtype, torch.float32) if active else raw.dtype
    scores = raw.to(dtype, copy=wanted)
    mask_undecodable(scores, target.decodable)
    drafts, faults = proposal.tokens.tolist() if active else [], {}
    for index in active:
        row, length = rows[index], lengths[index]
        places = slice(layout.starts[index], layout.starts[index] + length + 1)
        processed = row.request.processor(raw[places], row.tokens, drafts[index][:length])
        scores[places] = processed.scores
        if processed.error is not None:
            faults[index] = processed
    return scores, faults


def _laws(scores: Tensor, mixture: Mixture, layout: Ragged) -> Tensor | None:
    """Probabilities of the sampled rows, (S, M+1, V) float32."""
    if not mixture.sampled:
        return None
    if mixture.greedy:
        scores = torch.cat([scores[layout.row(index)] for index in mixture.sampled])
        layout = layout.part(mixture.sampled)
    if layout.even:  # the law goes by rows
        return law_probs(layout.rows(scores), mixture.sampled_law)
    each = [index for index, count in enumerate(layout.counts) for _ in range(count)]
    return layout.rows(law_probs(scores, mixture.sampled_law.rows(each)))


def _verdict(
    rows: Sequence[Row],
    mixture: Mixture,
    choices: Tensor | None,
    probs: Tensor | None,
    proposal: Proposal,
    lengths: Tensor,
    kernels: Kernels,
) -> Verdict:
    if probs is None and choices is not None:
        return verify_greedy(choices, proposal.tokens, lengths, kernels)
    sampled = [rows[index] for index in mixture.sampled]
    noise = _noise(sampled, proposal.candidates, lengths.device)
    if choices is None and probs is not None:
        return verify(probs, proposal, noise, lengths, kernels)
    assert choices is not None
    assert probs is not None
    drawn = verify(probs, proposal.rows(mixture.sampled), noise, lengths[mixture.sampled], kernels)
    chosen = verify_greedy(choices, proposal.tokens, lengths, kernels)
    chosen.accepted[mixture.sampled] = drawn.accepted
    chosen.next_token[mixture.sampled] = drawn.next_token
    return chosen


def _noise(rows: Sequence[Row], candidates: int, device: torch.device) -> Tensor:
    """Uniforms (S, M+1): the first M judge the candidates, the last one draws the token that ends the round."""
    seeds = [row.request.seed or 0 for row in rows]
    positions = [row.position + 1 for row in rows]
    judging = uniform_rows(seeds, "accept", positions, candidates, device)
    return torch.cat((judging, uniform_rows(seeds, "next", positions, 1, device)), dim=1)


def _unnumbered(raw: Tensor, verdict: Verdict, layout: Ragged) -> Tensor:
    """Rows whose law was not a number, int64 (B,): a draw ends behind the vocabulary, an argmax on the NaN itself."""
    starts, size = upload(layout.starts, raw.device), raw.shape[-1]
    score = raw[starts + verdict.accepted, verdict.next_token.clamp(max=size - 1)]
    return ((verdict.next_token >= size) | score.isnan()).long()


def _ruling(row: Row, raw: Tensor, fault: Processed | None, unnumbered: bool, tokens: list[int]) -> Ruling:
    accepted, error = len(tokens) - 1, None
    if fault is not None and accepted == fault.places:
        error = fault.error
    elif unnumbered:
        error = TargetError(f"request {row.request.id}: the target's logits are not numbers")
    tokens = tokens if error is None else tokens[:-1]
    asked = row.request.params.logprobs
    return Ruling(accepted, tokens, [] if asked is None else logprobs_of(raw[: len(tokens)], tokens, asked), error)


def logprobs_of(raw: Tensor, tokens: list[int], top_n: int) -> list[Logprob]:
    """Log-probabilities of tokens by the raw logits (T, V) of their places."""
    found = token_logprobs(raw, torch.tensor(tokens, dtype=torch.int64, device=raw.device), top_n)
    ids, values = found.top_ids.tolist(), found.top.tolist()
    return [
        Logprob(token, chosen, tuple(zip(ids[place], values[place], strict=True)))
        for place, (token, chosen) in enumerate(zip(tokens, found.chosen.tolist(), strict=True))
    ]
