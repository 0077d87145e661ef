"""The active rows of a batch, the caches that hold them, and what rounds of any kind do with them.

One rule: active rows are rows 0..n-1 of the caches, so a batch is a slice and never a gather; where a row ends, the
last one moves into its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspine.decode.capture import Parts
from dspine.decode.context import Context
from dspine.decode.judge import Mixture, Ruling
from dspine.decode.offers import Offers
from dspine.decode.records import RoundRecord
from dspine.decode.rows import Row
from dspine.decode.schedule import Schedule, Seat
from dspine.kernels.arithmetic import Kernels
from dspine.kernels.upload import upload
from dspine.target.cache import TargetCache
from dspine.target.model import Target


class Active:
    """What a round works on.

    Args:
        target: the model.
        parts: how the target goes over blocks, and the drafter; without one M is 0.
        schedule: says how many candidates to verify of rows without a rule of their own.
        offers: what rows look up in their own texts.
        capacity: most rows.
        kernels: whose arithmetic the verdict uses.

    Attributes:
        rows: in the order of the caches.
        cache: the target's, which has free rows behind the active ones.
        context: the drafter's; None without one.
        candidates: M.
    """

    def __init__(
        self, target: Target, parts: Parts, schedule: Schedule, offers: Offers, *, capacity: int, kernels: Kernels
    ) -> None:
        self.rows: list[Row] = []
        self.target = target
        self.forward = parts.forward
        self.drafter = parts.drafter
        self.schedule = schedule
        self.offers = offers
        self.kernels = kernels
        self.candidates = 0 if parts.drafter is None else parts.drafter.candidates
        self._capacity = capacity
        self._mixture: Mixture | None = None
        self.renew()

    def renew(self) -> None:
        """Empty caches; they take storage when something is written."""
        self.cache: TargetCache = self.target.new_cache(self._capacity)
        self.context = None if self.drafter is None else Context(self.drafter, self._capacity)

    # ---------------------------------------------------------------- what a round asks

    @property
    def held(self) -> list[int]:
        """Committed slots of each row in the target's cache."""
        return self.cache.rows.lengths[: len(self.rows)]

    @property
    def known(self) -> list[list[int]]:
        """The tokens of each row that the target's cache lacks, the anchor last."""
        return [row.tokens[length:] for row, length in zip(self.rows, self.held, strict=True)]

    @property
    def seats(self) -> list[Seat]:
        """The rows for the schedule."""
        return [Seat(row.request.id, row.room(self.candidates), row.own) for row in self.rows]

    @property
    def anchors(self) -> Tensor:
        """(B,) int64."""
        return upload([row.tokens[-1] for row in self.rows], self.target.device)

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's layers whose outputs the drafter reads; none where no row is drafted."""
        drafting = any(row.drafting for row in self.rows)
        return self.drafter.target_layer_ids if self.drafter is not None and drafting else ()

    @property
    def mixture(self) -> Mixture:
        """How the rows draw; made once, until others come or go."""
        if self._mixture is None:
            self._mixture = Mixture.of(self.rows, self.target.device)
        return self._mixture

    # ---------------------------------------------------------------- what a round leaves

    def observe(self, ids: Tensor, features: Tensor | None, kept: Sequence[int], *, drafted: bool) -> None:
        """Bring the tokens that stand to the drafter's context.

        Args:
            ids, features: (B, T) and (B, T, m·d) of the tokens from each row's anchor on.
            kept: how many of them stand, the anchor among them.
            drafted: whether the drafter was asked in this round; else the features wait.
        """
        if self.context is None or features is None:
            return
        if drafted:
            self.context.take_in(self.rows, ids, features, kept)
        else:
            self.context.put_off(self.rows, features)

    def keep(self, index: int, held: int, ruling: Ruling, proposed: int, nodes: int, *, looked_up: bool) -> None:
        """Give a row its tokens, and say how many of its slots are committed.

        A row that was ended while the round ran keeps nothing of it.

        Args:
            held: slots of the target's cache that hold committed tokens from now on.
            proposed, nodes, looked_up: as in `RoundRecord`.
        """
        row = self.rows[index]
        if row.finish is not None:
            return
        self.cache.rows.commit(index, held)
        kept = take(row, ruling)
        if kept:
            row.record(RoundRecord(proposed, ruling.accepted, kept, nodes, looked_up))

    def learn(
        self, seats: Sequence[Seat], lengths: Sequence[int], found: Sequence[Sequence[int]], rulings: Sequence[Ruling]
    ) -> None:
        """Let the schedule hear of drafts: what was looked up is none of its merit."""
        stood = [0 if given else ruling.accepted for given, ruling in zip(found, rulings, strict=True)]
        self.schedule.learn(seats, lengths, stood)

    # ---------------------------------------------------------------- rows come and go

    def extend(self, rows: Sequence[Row]) -> None:
        """Take in rows whose prompts are in the caches, behind the others."""
        self.rows.extend(rows)
        self._mixture = None

    def remove(self, index: int) -> Row:
        """Take out a row and close the gap."""
        row, last = self.rows[index], len(self.rows) - 1
        if index != last:
            self.cache.move(last, index)
            if self.context is not None:
                self.context.move(last, index)
            self.rows[index] = self.rows[last]
        self.rows.pop()
        self.cache.rows.commit(last, 0)
        if self.context is not None:
            self.context.forget(last)
        self._mixture = None
        return row


def take(row: Row, ruling: Ruling) -> int:
    """Give a row its tokens, and end it where something was raised behind them; returns how many were kept."""
    kept = row.take(ruling.tokens, ruling.logprobs)
    if ruling.error is not None and row.finish is None:
        row.end("error", ruling.error)
    return kept
