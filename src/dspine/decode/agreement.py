"""Does a drafter propose in generation what it predicts in training? Its first places, both ways, at the same anchors.

One rule: the same prompts, answers and anchors, namely those that the engine's rounds began at; so what is apart is the
fault of one of the two paths (positions, mask, features, template), not of harder or easier places. Anything beyond two
points wants looking into. Who trains compares with the objective's own forward, the doctor with the network's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from dspine.decode.records import Completion

APART = 0.02


@dataclass(frozen=True)
class Agreement:
    """Shares of `rounds` whose first candidate is the target's token: predicted with the training forward on the
    finished answer, and accepted by the engine while it was generated."""

    teacher_forced: float
    generated: float
    rounds: int

    @classmethod
    def of(cls, teacher_forced: float, completions: Sequence[Completion]) -> Agreement:
        """What is predicted at the anchors of `begun`, of all these answers, beside what was accepted there."""
        stood = [each for completion in completions for _, each in begun(completion)]
        return cls(teacher_forced, sum(stood) / len(stood), len(stood))

    @property
    def doubtful(self) -> bool:
        """Whether the two are further apart than rounding explains."""
        return abs(self.teacher_forced - self.generated) > APART


def begun(completion: Completion) -> list[tuple[int, bool]]:
    """Each round's anchor, and whether its first candidate stood; without rounds whose first place was cut off."""
    prompt, end = len(completion.prompt_ids), len(completion.prompt_ids) + len(completion.token_ids)
    starts = accumulate((record.kept for record in completion.rounds[:-1]), initial=prompt)
    rounds = zip(starts, completion.rounds, strict=True) if completion.rounds else ()
    return [(start, record.accepted > 0) for start, record in rounds if start + 1 < end and record.proposed]
