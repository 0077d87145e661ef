"""How much of what was looked up is worth verifying: by what such candidates were worth so far, and by costs.

One rule: it learns from every round of a row whose text offers something, verified or not, since the round's own tokens
say how far the offer was right. So nothing has to be risked to learn, and no estimate is stuck. Rows with a rule of
their own follow their text whatever is thought of it here.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspine.decode.acceptance import Acceptance
from dspine.decode.lookup import LONGEST
from dspine.decode.schedule import Adaptive, Seat


class Trust:
    """A running estimate for all rows of a batch: one of long offers, behind much that was said alike, one of others.

    Args:
        schedule: what would be drafted otherwise, and what rounds cost.
    """

    def __init__(self, schedule: Adaptive) -> None:
        self._schedule = schedule
        self._long, self._others = Acceptance(LONGEST), Acceptance(LONGEST)

    def followed(self, offers: Sequence[int], seats: Sequence[Seat]) -> list[int]:
        """How many candidates of each row's offer to verify; none: the row goes on as if it had no offer.

        They are admitted one by one, the likeliest to be kept first, and as many as make most tokens a second, if that
        is more than what the schedule promises of drafts, or of none.
        """
        lengths = [offer if seat.bound else 0 for offer, seat in zip(offers, seats, strict=True)]
        asked = [row for row, offer in enumerate(offers) if offer > lengths[row]]
        if not asked:
            return lengths
        costs = self._schedule.costs.covering(len(seats))
        survival = {row: self._of(offers[row]).survival()[: offers[row]] for row in asked}
        chances = [(-chance, place, row) for row in asked for place, chance in enumerate(survival[row])]
        chosen, speed, kept = list(lengths), self._schedule.promise(seats), float(len(seats))
        for chance, _, row in sorted(chances):
            lengths[row] += 1
            kept -= chance
            promised = kept / costs.undrafted_rows(lengths)
            if promised > speed:
                chosen, speed = list(lengths), promised
        return chosen

    def learn(self, offers: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]) -> None:
        """Hear of a round: what each row's text offered, and the tokens that the row got."""
        for offer, tokens in zip(offers, kept, strict=True):
            told = min(len(offer), len(tokens))  # candidates that the round says something of
            if told:
                stood = next((place for place in range(told) if offer[place] != tokens[place]), told)
                self._of(len(offer)).note(told, stood)

    def _of(self, offer: int) -> Acceptance:
        return self._long if offer == LONGEST else self._others
