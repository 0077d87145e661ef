"""The active rows of an engine, and one round for all of them.

One rule: active rows are rows 0..n-1 of the caches, so a batch is a slice and never a gather; where a row ends, the
last one moves into its place. Source: DSpine (arXiv 2609.36173), section on speculative decoding.

A round with anchor at position s of each row: draft candidates for s+1..s+M; choose how many, n, to verify (before the
draft, or by the confidences that come with it; none may mean no draft at all); run anchor and
candidates through the target at slots s..s+n; judge; the a candidates that stand and the target's own token become
x_{s+1}..x_{s+a+1}; the drafter observes the features of slots s..s+a. Then s' = s+a+1 is the number of slots in both
caches again, one less than the number of tokens: the new anchor has neither key nor feature yet. In rounds without
candidates the drafter rests; the features wait in the backlog until it drafts again.

A row whose candidates are looked up in its own text (`decode/lookup.py`) is not drafted in that round; where all rows
are such, nothing is.

A round with trees (`decode/branching.py`) leaves the same, but that the target's cache may hold less than s slots: what
is between it and the anchor goes through the target again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from dspine.decode.backlog import SLOTS
from dspine.decode.branching import Block, along, ids_of, judged, span_of
from dspine.decode.capture import Parts
from dspine.decode.context import Context
from dspine.decode.judge import Mixture, Ruling, judge
from dspine.decode.noise import uniform_rows
from dspine.decode.offers import Offers
from dspine.decode.policy import FULL, Own
from dspine.decode.records import RoundRecord
from dspine.decode.rows import Row
from dspine.decode.schedule import Schedule, Seat
from dspine.drafter.proposal import Proposal
from dspine.drafter.transitions import tabulating
from dspine.drafter.tree import Tree, grown
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.kv import Span
from dspine.kernels.upload import upload
from dspine.stages import stage
from dspine.target.cache import TargetCache
from dspine.target.model import Target

KEPT_SLOTS = 1024  # an idle batch whose caches grew beyond this lets them go


class Batch:
    """Rows in progress with their caches.

    Args:
        target: the model.
        parts: how the target goes over blocks, and the drafter; without one M is 0.
        schedule: says how many candidates to verify of rows without a rule of their own.
        own: the rule of rows whose request brings none; None: a request with a seed is verified in full, the schedule
            chooses for the others.
        nodes: of a row's tree, which the drafter can tell, as far as the row's block holds nothing else behind the
            anchor's place; 0: candidates are one line. None: as many as the schedule says of candidates, as long as all
            rows are greedy and none has a rule of its own.
        lookup: tokens that a row must have said before for its candidates to be looked up; 0: nothing is. An `Adaptive`
            schedule says how many of them are verified.
        capacity: most rows.
        prefill_chunk: most prompt tokens a row in one forward.
        kernels: whose arithmetic the verdict uses.
    """

    def __init__(
        self,
        target: Target,
        parts: Parts,
        schedule: Schedule,
        *,
        own: Own | None = None,
        nodes: int | None = 0,
        lookup: int = 0,
        capacity: int,
        prefill_chunk: int,
        kernels: Kernels = REFERENCE,
    ) -> None:
        self.rows: list[Row] = []
        self.capacity = capacity
        self._target = target
        self._drafter = drafter = parts.drafter
        self._forward = parts.forward
        self._stays = parts.recorded  # recordings are made over the caches: these are kept, whatever their size
        self._schedule = schedule
        self._own = own
        self._nodes = nodes
        positions = None if drafter is None else drafter.max_positions
        self._offers = Offers(lookup, schedule, alike=target.alike, positions=positions)
        self._chunk = prefill_chunk
        self._kernels = kernels
        self._candidates = 0 if drafter is None else drafter.candidates
        self._mixture: Mixture | None = None
        self._renew()

    @property
    def free(self) -> int:
        return self.capacity - len(self.rows)

    @property
    def bytes(self) -> int:
        """Storage of both caches, and of the features that wait."""
        return self._cache.bytes + (0 if self._context is None else self._context.bytes)

    # ---------------------------------------------------------------- the three things it does

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> None:
        """Prefill the prompts of new rows together, and give each its first token, which belongs to no round."""
        first = len(self.rows)
        # Longest first: the rows that still have prompt tokens left are then a slice at every chunk.
        rows = sorted(rows, key=lambda row: -len(row.tokens))
        for row in rows:
            row.drafting = self._context is not None and self._context.within_range(row, len(row.tokens))
            row.own = row.request.own or self._own or (FULL if row.request.seeded else None)
            row.repeatable = row.own is not None or not row.drafting
            self._offers.admit(row)
        with stage("prefill"):
            hidden = torch.cat([self._prefill(first + at, group) for at, group in self._together(rows)])
        nothing = Proposal(torch.empty((len(rows), 0), dtype=torch.int64, device=hidden.device))
        rulings = judge(self._target, rows, self._mixed(rows), hidden, nothing, [0] * len(rows), self._kernels)
        for row, ruling in zip(rows, rulings, strict=True):
            if row.finish is None:
                _keep(row, ruling)
        self.rows.extend(rows)
        self._mixture = None

    @torch.inference_mode()
    def advance(self) -> None:
        """Run one round."""
        self._check()
        if self._context is not None:
            self._context.leave_range(self.rows)
        if self._branches():
            self._advance_trees()
        else:
            if self._nodes is None:
                self._make_keys()
            self._advance_lines()
        self._check()

    def _branches(self) -> bool:
        """Whether this round has trees. The schedule may choose them where all rows are greedy and none has a rule of
        its own: what is sampled has more of a line, which goes by its own law."""
        if self._nodes is not None:
            return self._nodes > 0
        return all(row.request.params.greedy and row.own is None for row in self.rows)

    def _make_keys(self) -> None:
        """Make the keys that trees left to be made, since a line begins with the anchor.

        In a forward beside the rounds: a round for them would move those of rows whose tokens depend on theirs.
        """
        for index, (row, known) in enumerate(zip(self.rows, self._known(), strict=True)):
            if len(known) > 1:
                ids = torch.tensor([known[:-1]], device=self._target.device)
                with stage("verify/forward"):
                    self._target.forward(ids, self._cache, Span(index, (row.position - len(known) + 1,), ids.shape[1]))
                self._cache.rows.commit(index, row.position)

    def _seats(self) -> list[Seat]:
        """The rows for the schedule."""
        return [Seat(row.request.id, row.room(self._candidates), row.own) for row in self.rows]

    def _known(self) -> list[list[int]]:
        """The tokens of each row that the target's cache lacks, the anchor last."""
        held = self._cache.rows.lengths[: len(self.rows)]  # the cache has free rows behind the active ones
        return [row.tokens[length:] for row, length in zip(self.rows, held, strict=True)]

    def _advance_lines(self) -> None:
        """A round in which candidates are one line a row."""
        rows = self.rows
        starts = [row.position for row in rows]
        offers = self._offers.made(rows, self._known())
        found, seats = self._offers.followed(offers, self._seats())
        drafted = self._schedule.lengths(seats)
        anchors = upload([row.tokens[-1] for row in rows], self._target.device)
        proposal, drafting = self._propose(anchors, max(drafted)), any(drafted)
        drafted = self._cut(seats, drafted, proposal.confidence)
        proposal = proposal.places(max(drafted))
        if any(found):
            proposal = proposal.given(found)
        lengths = [len(candidates) or length for candidates, length in zip(found, drafted, strict=True)]
        with stage("verify/forward"):
            ids = torch.cat((anchors[:, None], proposal.tokens), dim=1)  # (B, M+1)
            span = Span.of(0, starts, [length + 1 for length in lengths])
            out = self._forward(ids, self._cache, span, self._taps())
        rulings = judge(self._target, rows, self._mixed(rows), out.hidden, proposal, lengths, self._kernels)
        with stage("commit/observe"):
            if self._context is not None and out.features is not None:
                if drafting:
                    self._context.take_in(rows, ids, out.features, [ruling.accepted + 1 for ruling in rulings])
                else:
                    self._context.put_off(rows, out.features)
        with stage("commit/text"):
            for index, (row, ruling) in enumerate(zip(rows, rulings, strict=True)):
                if row.finish is None:  # else it was ended while the round ran: nothing of the round is kept
                    self._cache.rows.commit(index, starts[index] + ruling.accepted + 1)
                    kept = _keep(row, ruling)
                    if kept:
                        row.record(RoundRecord(lengths[index], ruling.accepted, kept, looked_up=bool(found[index])))
        self._learn(seats, drafted, found, rulings)
        self._offers.learn(offers, rows, starts)

    def _advance_trees(self) -> None:
        """A round in which candidates are a tree a row."""
        rows = self.rows
        starts = [row.position for row in rows]
        known = self._known()
        offers = self._offers.made(rows, known)
        found, seats = self._offers.followed(offers, self._seats())
        sizes = self._schedule.lengths(seats) if self._nodes is None else [self._nodes] * len(rows)
        drafted = self._grow(known, sizes, [seat.room for seat in seats])
        trees = [Tree.in_line(tokens) if tokens else tree for tokens, tree in zip(found, drafted, strict=True)]
        blocks = [Block(*pair) for pair in zip(known, trees, strict=True)]
        with stage("verify/forward"):
            ids = ids_of(blocks, self._target.device)
            held = self._cache.rows.lengths[: len(rows)]
            out = self._forward(ids, self._cache, span_of(blocks, held), self._taps())
        paths = judged(self._target, rows, self._mixed(rows), out.hidden, blocks)
        with stage("commit/observe"):
            if self._context is not None and out.features is not None:
                shown, features = along(paths, ids, out.features)
                if any(tree.tokens for tree in drafted):
                    self._context.take_in(rows, shown, features, [len(path.steps) for path in paths])
                else:
                    self._context.put_off(rows, features)
        with stage("commit/text"):
            for index, (row, path) in enumerate(zip(rows, paths, strict=True)):
                if row.finish is None:
                    self._cache.rows.commit(index, held[index] + path.stands)
                    kept = _keep(row, path.ruling)
                    if kept:
                        nodes, looked_up = len(drafted[index].tokens), bool(found[index])
                        row.record(RoundRecord(path.places, path.ruling.accepted, kept, nodes, looked_up))
        if self._nodes is None:
            self._learn(seats, sizes, found, [path.ruling for path in paths])
        self._offers.learn(offers, rows, starts)

    def _grow(self, known: Sequence[Sequence[int]], sizes: Sequence[int], places: Sequence[int]) -> list[Tree]:
        """Draft a block a row, and make a tree of it.

        Args:
            known: of each row, the tokens that go through the target before its tree.
            sizes: nodes of each tree, less what is known behind the anchor's place.
            places: how many a tree may reach.
        """
        most = [size + 1 for size in sizes]
        if self._target.alike is not None:  # more would go through in another order of summation
            most = [min(size, self._target.alike) for size in most]
        left = [max(0, size - len(tokens)) for size, tokens in zip(most, known, strict=True)]
        wanted = any(size and place for size, place in zip(left, places, strict=True))
        if not wanted or self._context is None or not tabulating(drafter := self._context.drafter):
            return [Tree()] * len(self.rows)
        self._context.catch_up(self.rows)
        anchors = upload([row.tokens[-1] for row in self.rows], self._target.device)
        transitions = drafter.transitions(self._context.cache, 0, anchors)
        with stage("draft/tree"):
            return grown(transitions, left, places)

    @torch.inference_mode()  # the caches are made in this mode, so their rows must move in it
    def sweep(self) -> list[Row]:
        """Take out the rows that have ended and close the gaps."""
        ended = []
        for index in reversed(range(len(self.rows))):
            if self.rows[index].finish is not None:
                ended.append(self.rows[index])
                self._close_gap(index)
        if ended:
            self._mixture = None
        if not self.rows and self._cache.rows.capacity > KEPT_SLOTS and not self._stays:
            self._renew()
        return ended

    def settle(self) -> None:
        """Set the caches' lengths to what the rows' tokens say: where an interrupted round leaves everything."""
        for index, row in enumerate(self.rows):
            # A round with trees may have left less than the anchor's position, an interrupted one more.
            self._cache.rows.commit(index, min(self._cache.rows.lengths[index], row.position))
        if self._context is not None:
            self._context.settle(self.rows)

    # ---------------------------------------------------------------- parts of a round

    def _together(self, rows: Sequence[Row]) -> list[tuple[int, Sequence[Row]]]:
        """Rows that are prefilled in the same forwards, and how many are before them."""
        if self._target.alike is not None:
            # Alone, where a token's result depends on how many go through together with it only beyond some number.
            return [(at, [row]) for at, row in enumerate(rows)]
        if not self._target.stateful:
            return [(0, rows)]
        # A state takes in whatever comes, so there is no padding: prompts of one length go together.
        lengths = [len(row.tokens) for row in rows]
        return [(lengths.index(n), rows[lengths.index(n) :][: lengths.count(n)]) for n in dict.fromkeys(lengths)]

    def _prefill(self, first: int, rows: Sequence[Row]) -> Tensor:
        """Run prompts, longest first, in chunks of right-padded rows; returns the last hidden states, (B, 1, d).

        Padding lies behind a row's last token, where a later token overwrites it before anything sees it.
        """
        ends = [len(row.tokens) for row in rows]
        last: list[Tensor] = []  # shortest row first: rows end from the back
        for start in range(0, ends[0], self._chunk):
            live = sum(end > start for end in ends)
            counts = [min(self._chunk, end - start) for end in ends[:live]]
            padded = [row.tokens[start : start + counts[0]] for row in rows[:live]]
            padded = [tokens + [0] * (counts[0] - len(tokens)) for tokens in padded]
            ids = torch.tensor(padded, device=self._target.device)
            taps = () if self._drafter is None else self._drafter.target_layer_ids
            out = self._target.forward(ids, self._cache, Span(first, (start,) * live, counts[0], whole=True), taps)
            if self._context is not None and out.features is not None:
                self._context.prompt(first, start, rows, ids, out.features, counts)
            done = [index for index in range(live) if ends[index] <= start + self._chunk]
            last.extend(out.hidden[index, counts[index] - 1] for index in reversed(done))
        for index, end in enumerate(ends):
            self._cache.rows.commit(first + index, end)
        return torch.stack(last[::-1]).unsqueeze(1)

    def _propose(self, anchors: Tensor, width: int) -> Proposal:
        """Draft a whole block a row, and keep its first `width` places; nothing is drafted if that is 0."""
        if self._context is None or width == 0:
            return Proposal(anchors.new_empty((len(anchors), 0)))
        self._context.catch_up(self.rows)
        law, uniforms = self._mixed(self.rows).law, None
        if not law.greedy:
            seeds = [self._draft_seed(row) for row in self.rows]
            positions = [row.position + 1 for row in self.rows]
            uniforms = uniform_rows(seeds, "draft", positions, self._candidates, anchors.device)
        proposal = self._context.drafter.propose(self._context.cache, 0, anchors, law, uniforms)
        return proposal.places(width)

    def _learn(
        self, seats: Sequence[Seat], lengths: Sequence[int], found: Sequence[Sequence[int]], rulings: Sequence[Ruling]
    ) -> None:
        """Let the schedule hear of drafts: what was looked up is none of its merit."""
        stood = [0 if given else ruling.accepted for given, ruling in zip(found, rulings, strict=True)]
        self._schedule.learn(seats, lengths, stood)

    def _draft_seed(self, row: Row) -> int:
        """What keys a row's draft: its own seed, or, where its number of candidates looks back, another every round."""
        return secrets.randbits(63) if row.own is None and self._schedule.looks_back else row.request.seed or 0

    def _cut(self, seats: Sequence[Seat], lengths: Sequence[int], confidence: Tensor | None) -> list[int]:
        """How many candidates to verify, now that they are drafted: by each row's own rule, then by the schedule."""
        asked = self._schedule.reads_confidence or any(seat.own is not None and seat.own.threshold for seat in seats)
        said: list[list[float]] | None = confidence.tolist() if asked and confidence is not None else None
        kept = [
            length if seat.own is None else seat.own.cut(length, None if said is None else said[index])
            for index, (seat, length) in enumerate(zip(seats, lengths, strict=True))
        ]
        return self._schedule.cut(seats, kept, said)

    # ---------------------------------------------------------------- housekeeping

    def _taps(self) -> tuple[int, ...]:
        drafting = any(row.drafting for row in self.rows)
        return self._drafter.target_layer_ids if self._drafter is not None and drafting else ()

    def _mixed(self, rows: Sequence[Row]) -> Mixture:
        """How rows draw; made once for the active rows, until others come or go."""
        if rows is not self.rows:
            return Mixture.of(rows, self._target.device)
        if self._mixture is None:
            self._mixture = Mixture.of(rows, self._target.device)
        return self._mixture

    def _close_gap(self, index: int) -> None:
        last = len(self.rows) - 1
        if index != last:
            self._cache.move(last, index)
            if self._context is not None:
                self._context.move(last, index)
            self.rows[index] = self.rows[last]
        self.rows.pop()
        self._cache.rows.commit(last, 0)
        if self._context is not None:
            self._context.forget(last)

    def _renew(self) -> None:
        """Empty caches; they take storage when something is written."""
        self._cache: TargetCache = self._target.new_cache(self.capacity)
        self._context = None if self._drafter is None else Context(self._drafter, self.capacity)

    def _check(self) -> None:
        """The invariant between rounds: target_len == context_len + backlog == s, len(tokens) == s + 1.

        With trees target_len may be less, by no more than the places of a block.
        """
        most = 0 if self._nodes == 0 else self._candidates
        for index, (row, known) in enumerate(zip(self.rows, self._known(), strict=True)):
            lacking = len(known) - 1
            assert row.finish is not None or 0 <= lacking <= most, f"row {index} lacks {lacking} target slots"
        for index, waiting in enumerate(self._context.behind(self.rows) if self._context is not None else ()):
            ended = self.rows[index].finish is not None
            assert ended or 0 <= waiting <= SLOTS, f"row {index}: {waiting} features wait before the anchor"


def _keep(row: Row, ruling: Ruling) -> int:
    """Give a row its tokens, and end it where something was raised behind them; returns how many were kept."""
    kept = row.take(ruling.tokens, ruling.logprobs)
    if ruling.error is not None and row.finish is None:
        row.end("error", ruling.error)
    return kept
