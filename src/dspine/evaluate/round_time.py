"""Where the time of a round goes, what it predicts for a token, and what it would be with other numbers of requests.

One rule: a model stands beside a measurement, never in its place. TPOT ≈ (T_draft + T_verify) / tau, with T_draft all
that the drafter does in a round (taking in features included) and T_verify the target's forward up to the verdict.
Source: DSpine (arXiv 2609.36173), section on speculative decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspine.decode.cost import Costs
from dspine.stages import StageTime

DRAFT = ("draft/", "commit/observe")
VERIFY = ("verify/",)
ROUND = ("draft/", "verify/", "commit/")


@dataclass(frozen=True)
class RoundTime:
    """A round of a whole batch, in seconds: mean of a load.

    stages: seconds a round by stage.
    draft, verify: T_draft and T_verify.
    other: what else the round does (taking over text and tokens).
    """

    rounds: int
    stages: dict[str, float]
    draft: float
    verify: float
    other: float

    def tpot(self, tau: float) -> float:
        """Seconds a token of one request, by the model."""
        return (self.draft + self.verify) / tau


def round_time(stages: Sequence[StageTime]) -> RoundTime | None:
    """The mean round of what a clock saw; None if it saw no round."""
    rounds = sum(each.calls for each in stages if each.name == "verify/forward")
    if not rounds:
        return None
    mean = {each.name: each.seconds / rounds for each in stages if each.name.startswith(ROUND)}
    draft = sum(seconds for name, seconds in mean.items() if name.startswith(DRAFT))
    verify = sum(seconds for name, seconds in mean.items() if name.startswith(VERIFY))
    return RoundTime(rounds, mean, draft, verify, sum(mean.values()) - draft - verify)


def predicted_speedup(costs: Costs, rows: int, candidates: int, tau: float) -> float:
    """How much faster than plain decoding a token is, by what rounds of `rows` requests cost: both without prefill."""
    return tau * costs.plain(rows) / costs.drafted(rows, candidates)
