"""What the rows of a batch are offered by their own texts, and what of it they verify in place of a draft.

One rule: an offer is made of its own row alone (`decode/lookup.py`); what others are doing may bring a row to leave it,
as far as the row has no rule of its own (`decode/trust.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dspine.decode.lookup import LONGEST, Lookup
from dspine.decode.rows import Row
from dspine.decode.schedule import Adaptive, Schedule, Seat
from dspine.decode.trust import Trust

Tokens = Sequence[int]


class Offers:
    """The lookups of a batch.

    Args:
        shortest: tokens that a row must have said before; 0: nothing is looked up.
        schedule: an `Adaptive` one says how much of an offer is worth verifying; else all of it is.
        alike: the most tokens of a row that may go through the target together; None: any number.
        positions: of the drafter; None: there is none.
    """

    def __init__(self, shortest: int, schedule: Schedule, *, alike: int | None, positions: int | None) -> None:
        self._shortest = shortest
        self._trust = Trust(schedule) if isinstance(schedule, Adaptive) else None
        self._alike = alike
        self._positions = positions

    def admit(self, row: Row) -> None:
        """Let a new row look things up, unless its own rule asks for confidences: what is looked up has none."""
        if self._shortest and not (row.own is not None and row.own.threshold):
            row.lookup = Lookup(self._shortest)

    def made(self, rows: Sequence[Row], known: Sequence[Tokens]) -> list[list[int]]:
        """What each row's text offers as its candidates.

        Args:
            known: of each row, the tokens that go through the target before them.
        """
        return [row.looked_up(self._most(row, len(tokens))) for row, tokens in zip(rows, known, strict=True)]

    def followed(self, offers: Sequence[Tokens], seats: Sequence[Seat]) -> tuple[list[Tokens], list[Seat]]:
        """What of its offer each row verifies (nothing: it goes on as if it had none), and the seats as the schedule
        is to see them: without room for a draft where something is followed."""
        found = list(offers)
        if self._trust is not None and any(offers):
            counts = self._trust.followed([len(offer) for offer in offers], seats)
            found = [offer[:count] for offer, count in zip(offers, counts, strict=True)]
        left = [replace(seat, room=0) if tokens else seat for tokens, seat in zip(found, seats, strict=True)]
        return found, left

    def learn(self, offers: Sequence[Tokens], rows: Sequence[Row], anchors: Sequence[int]) -> None:
        """Hear what the rows kept behind the positions of their anchors: it says how far the offers were right."""
        if self._trust is not None:
            self._trust.learn(offers, [row.tokens[at + 1 :] for row, at in zip(rows, anchors, strict=True)])

    def _most(self, row: Row, known: int) -> int:
        """The most candidates that a row may be offered."""
        most = LONGEST
        if self._positions is not None and row.drafting:  # what stands goes into the drafter's context
            most = min(most, self._positions - 1 - row.position)
        return most if self._alike is None else min(most, self._alike - known)
