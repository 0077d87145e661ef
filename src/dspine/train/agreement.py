"""Does a drafter propose in generation what it predicts in training? Its first places, both ways, at the same anchors.

One rule: the same prompts, answers and anchors, namely those that the engine's rounds began at; so what is apart is the
fault of one of the two paths (positions, mask, features, template), not of harder or easier places. Anything beyond two
points wants looking into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from dspine.decode.records import Completion
from dspine.target.model import Target
from dspine.train.blocks import cut_blocks
from dspine.train.objectives.objective import Moment, Objective, Terms
from dspine.train.responses import ResponseRow
from dspine.train.sequences import online_batch

APART = 0.02
AT_ONCE = 4  # answers of one pass
NOW = Moment(step=0, epoch=0, learning_rate=0.0)


@dataclass(frozen=True)
class Agreement:
    """Shares of `rounds` whose first candidate is the target's token: predicted with the training forward on the
    finished answer, and accepted by the engine while it was generated."""

    teacher_forced: float
    generated: float
    rounds: int

    @property
    def doubtful(self) -> bool:
        """Whether the two are further apart than rounding explains."""
        return abs(self.teacher_forced - self.generated) > APART


@torch.no_grad()
def first_places(
    target: Target, objective: Objective, taps: Sequence[int], candidates: int, completions: Sequence[Completion]
) -> Agreement | None:
    """Compare over greedy answers; None where there was no round to compare.

    Args:
        objective: of the drafter that made the answers, with M = `candidates`; taps: its layer ids.
    """
    stood = rounds = 0
    parts: list[Terms] = []
    for first in range(0, len(completions), AT_ONCE):
        some = [c for c in completions[first : first + AT_ONCE] if len(c.token_ids) > 1]
        if not some:
            continue
        anchors = []
        for completion in some:
            begun = _anchors(completion)
            anchors.append(torch.tensor([anchor for anchor, _ in begun], dtype=torch.int64))
            stood += sum(accepted for _, accepted in begun)
            rounds += len(begun)
        rows = [
            ResponseRow(str(i), "", [], list(c.prompt_ids), list(c.token_ids), c.finish_reason)
            for i, c in enumerate(some)
        ]
        batch = online_batch(target, rows, taps)
        inside = torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
        batch = replace(batch, loss_mask=inside)  # a kind that drafts from the prompt's end is held to it as well
        parts.append(objective.terms(batch, cut_blocks(batch.ids, inside, batch.lengths, anchors, candidates), NOW))
    if not rounds:
        return None
    matches = Terms.total(parts).by_place()[0][0]
    return Agreement(teacher_forced=matches, generated=stood / rounds, rounds=rounds)


def _anchors(completion: Completion) -> list[tuple[int, bool]]:
    """Each round's anchor, and whether its first candidate stood; without rounds whose first place was cut off."""
    prompt, end = len(completion.prompt_ids), len(completion.prompt_ids) + len(completion.token_ids)
    starts = accumulate((record.kept for record in completion.rounds[:-1]), initial=prompt)
    begun = zip(starts, completion.rounds, strict=True) if completion.rounds else ()
    return [(start, record.accepted > 0) for start, record in begun if start + 1 < end and record.proposed]
