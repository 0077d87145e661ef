"""The batch of an engine: rows are admitted, advanced by rounds, and taken out where they end.

One rule: between two rounds, and after an interrupted one, the rows' tokens alone say what of the caches counts. A
round is one of lines (`decode/lines.py`) or of trees (`decode/trees.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspine.decode import lines, trees
from dspine.decode.active import Active, take
from dspine.decode.backlog import SLOTS
from dspine.decode.capture import Parts
from dspine.decode.judge import Mixture, judge
from dspine.decode.offers import Offers
from dspine.decode.policy import FULL, Own
from dspine.decode.rows import Row
from dspine.decode.schedule import Schedule
from dspine.drafter.proposal import Proposal
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.kv import Span
from dspine.stages import stage
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
        self.capacity = capacity
        positions = None if parts.drafter is None else parts.drafter.max_positions
        offers = Offers(lookup, schedule, alike=target.alike, positions=positions)
        self._active = Active(target, parts, schedule, offers, capacity=capacity, kernels=kernels)
        self._target = target
        self._stays = parts.recorded  # recordings are made over the caches: these are kept, whatever their size
        self._own = own
        self._nodes = nodes
        self._chunk = prefill_chunk

    @property
    def rows(self) -> Sequence[Row]:
        """Those in progress."""
        return self._active.rows

    @property
    def free(self) -> int:
        return self.capacity - len(self.rows)

    @property
    def bytes(self) -> int:
        """Storage of both caches, and of the features that wait."""
        context = self._active.context
        return self._active.cache.bytes + (0 if context is None else context.bytes)

    # ---------------------------------------------------------------- the three things it does

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> None:
        """Prefill the prompts of new rows together, and give each its first token, which belongs to no round."""
        first, context, offers = len(self.rows), self._active.context, self._active.offers
        # Longest first: the rows that still have prompt tokens left are then a slice at every chunk.
        rows = sorted(rows, key=lambda row: -len(row.tokens))
        for row in rows:
            row.drafting = context is not None and context.within_range(row, len(row.tokens))
            row.own = row.request.own or self._own or (FULL if row.request.seeded else None)
            row.repeatable = row.own is not None or not row.drafting
            offers.admit(row)
        with stage("prefill"):
            hidden = torch.cat([self._prefill(first + at, group) for at, group in self._together(rows)])
        nothing = Proposal(torch.empty((len(rows), 0), dtype=torch.int64, device=hidden.device))
        mixture = Mixture.of(rows, self._target.device)
        rulings = judge(self._target, rows, mixture, hidden, nothing, [0] * len(rows), self._active.kernels)
        for row, ruling in zip(rows, rulings, strict=True):
            if row.finish is None:
                take(row, ruling)
        self._active.extend(rows)

    @torch.inference_mode()
    def advance(self) -> None:
        """Run one round."""
        self._check()
        if self._active.context is not None:
            self._active.context.leave_range(self.rows)
        if self._branches():
            trees.advance(self._active, self._nodes)
        else:
            if self._nodes is None:
                lines.make_keys(self._active)
            lines.advance(self._active)
        self._check()

    @torch.inference_mode()  # the caches are made in this mode, so their rows must move in it
    def sweep(self) -> list[Row]:
        """Take out the rows that have ended and close the gaps."""
        ended = [index for index, row in enumerate(self.rows) if row.finish is not None]
        rows = [self._active.remove(index) for index in reversed(ended)]
        if not self.rows and self._active.cache.rows.capacity > KEPT_SLOTS and not self._stays:
            self._active.renew()
        return rows

    def settle(self) -> None:
        """Set the caches' lengths to what the rows' tokens say: where an interrupted round leaves everything."""
        for index, (row, held) in enumerate(zip(self.rows, self._active.held, strict=True)):
            # A round with trees may have left less than the anchor's position, an interrupted one more.
            self._active.cache.rows.commit(index, min(held, row.position))
        if self._active.context is not None:
            self._active.context.settle(self.rows)

    # ---------------------------------------------------------------- parts of them

    def _branches(self) -> bool:
        """Whether this round has trees. The schedule may choose them where all rows are greedy and none has a rule of
        its own: what is sampled has more of a line, which goes by its own law."""
        if self._nodes is not None:
            return self._nodes > 0
        return all(row.request.params.greedy and row.own is None for row in self.rows)

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
        active, ends = self._active, [len(row.tokens) for row in rows]
        last: list[Tensor] = []  # shortest row first: rows end from the back
        for start in range(0, ends[0], self._chunk):
            live = sum(end > start for end in ends)
            counts = [min(self._chunk, end - start) for end in ends[:live]]
            padded = [row.tokens[start : start + counts[0]] for row in rows[:live]]
            padded = [tokens + [0] * (counts[0] - len(tokens)) for tokens in padded]
            ids = torch.tensor(padded, device=self._target.device)
            taps = () if active.drafter is None else active.drafter.target_layer_ids
            span = Span(first, (start,) * live, counts[0], whole=True)
            out = self._target.forward(ids, active.cache, span, taps)
            if active.context is not None and out.features is not None:
                active.context.prompt(first, start, rows, ids, out.features, counts)
            done = [index for index in range(live) if ends[index] <= start + self._chunk]
            last.extend(out.hidden[index, counts[index] - 1] for index in reversed(done))
        for index, end in enumerate(ends):
            active.cache.rows.commit(first + index, end)
        return torch.stack(last[::-1]).unsqueeze(1)

    def _check(self) -> None:
        """The invariant between rounds: target_len == context_len + backlog == s, len(tokens) == s + 1.

        With trees target_len may be less, by no more than the places of a block.
        """
        active, most = self._active, 0 if self._nodes == 0 else self._active.candidates
        for index, (row, known) in enumerate(zip(self.rows, active.known, strict=True)):
            lacking = len(known) - 1
            assert row.finish is not None or 0 <= lacking <= most, f"row {index} lacks {lacking} target slots"
        for index, waiting in enumerate(active.context.behind(self.rows) if active.context is not None else ()):
            ended = self.rows[index].finish is not None
            assert ended or 0 <= waiting <= SLOTS, f"row {index}: {waiting} features wait before the anchor"
