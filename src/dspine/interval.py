"""Intervals of ratios over requests.

One rule: requests are drawn, not rounds, since the rounds of one answer are not independent of each other. Source:
percentile bootstrap (Efron 1979).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Lower and upper end; NaN where no draw had anything to divide by."""

    low: float
    high: float


def bootstrap(
    pairs: Sequence[tuple[float, float]], *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of Σ numerators / Σ denominators.

    Args:
        pairs: (numerator, denominator) of each request; with all denominators 1 the ratio is a mean.
        draws: resamples, each as large as the sample.
        level: share of the resamples inside, half of the rest on either side.
        seed: same seed, same interval.
    """
    chance = random.Random(seed)
    ratios = []
    for _ in range(draws if pairs else 0):
        drawn = chance.choices(pairs, k=len(pairs))
        below = sum(denominator for _, denominator in drawn)
        if below:
            ratios.append(sum(numerator for numerator, _ in drawn) / below)
    if not ratios:
        return Interval(nan, nan)
    ratios.sort()
    outside = round((1 - level) / 2 * len(ratios))
    return Interval(ratios[outside], ratios[len(ratios) - 1 - outside])
