"""Calibrating confidences: sequential temperature scaling.

One rule: place after place, with the places before it frozen: T_k is chosen so that the *product* of the first k
confidences agrees with how often the first k candidates stood, for it is the product that a scheduler weighs. Each
place keeps its order. Source: DSpark (arXiv 2607.05147), calibration; with ζ_k the logit of place k,

    c_k = σ(ζ_k / T_k),   T_k = argmin_T ECE( Π_{i<k} σ(ζ_i / T_i) · σ(ζ_k / T),  1[the first k stood] )

ECE is the expected calibration error: the mean gap between chance and frequency, in bins of equal width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspine.decode.schedule import Seat
from dspine.errors import DataError

Numbers = NDArray[np.float64]

GRID: Numbers = np.geomspace(0.1, 10.0, 81)  # 1 is in it
BINS = 15
FEWEST = 100  # rounds that must have verified a place


@dataclass(frozen=True)
class Round:
    """A row's round: confidences of its verified candidates, place 1 first, and how many of them stood."""

    confidence: tuple[float, ...]
    accepted: int


class Recorder:
    """A `Schedule` that verifies whole blocks and keeps what the confidences said and what became of it."""

    reads_confidence = True
    looks_back = False

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self._said: Sequence[Sequence[float]] = ()

    def lengths(self, seats: Sequence[Seat]) -> list[int]:
        return [seat.room for seat in seats]

    def cut(
        self, seats: Sequence[Seat], lengths: Sequence[int], confidences: Sequence[Sequence[float]] | None
    ) -> list[int]:
        self._said = confidences or [()] * len(seats)
        return list(lengths)

    def learn(self, seats: Sequence[Seat], lengths: Sequence[int], accepted: Sequence[int]) -> None:
        for said, verified, stood in zip(self._said, lengths, accepted, strict=True):
            if verified:
                self.rounds.append(Round(tuple(said[:verified]), stood))


@dataclass(frozen=True)
class Calibration:
    """What was fitted.

    temperatures: T_1..T_M. rounds: that it was fitted on. ece_before, ece_after: mean over the places.
    """

    temperatures: tuple[float, ...]
    rounds: int
    ece_before: float
    ece_after: float


def fit(rounds: Sequence[Round], places: int) -> Calibration:
    """Temperatures of M = `places` places from rounds whose confidences were not calibrated.

    Raises:
        DataError: a place was verified in too few rounds to say anything.
    """
    temperatures: list[float] = []
    before: list[float] = []
    after: list[float] = []
    for place in range(places):
        seen = [each for each in rounds if len(each.confidence) > place]
        if len(seen) < FEWEST:
            raise DataError(
                f"place {place + 1} was verified in {len(seen)} rounds, and temperatures need at least {FEWEST}",
                "Ask more prompts, or for longer answers.",
            )
        logits = _logits(np.array([each.confidence[: place + 1] for each in seen]))  # (R, place + 1)
        stood = np.array([each.accepted > place for each in seen], dtype=np.float64)
        so_far = _chances(logits[:, :-1], np.array(temperatures)).prod(1)
        errors = [ece(so_far * _chances(logits[:, -1], t), stood) for t in GRID]
        best = min(range(len(GRID)), key=lambda index: (errors[index], abs(np.log(GRID[index]))))
        temperatures.append(round(float(GRID[best]), 6))
        before.append(ece(_chances(logits, np.ones(place + 1)).prod(1), stood))
        after.append(errors[best])
    return Calibration(tuple(temperatures), len(rounds), float(np.mean(before)), float(np.mean(after)))


def ece(chances: Numbers, happened: Numbers) -> float:
    """Expected calibration error of chances (R,) in [0, 1] against 0 or 1 (R,)."""
    bins = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, chances - happened, minlength=BINS)
    return float(np.abs(gaps).sum() / len(chances))


def _chances(logits: Numbers, temperature: Numbers | float) -> Numbers:
    chances: Numbers = 1 / (1 + np.exp(-logits / temperature))
    return chances


def _logits(confidence: Numbers) -> Numbers:
    """ζ of σ(ζ); what float32 rounded to 0 or 1 comes back as far away as float32 can tell."""
    inside = np.clip(confidence, 1e-7, 1 - 1e-7)
    logits: Numbers = np.log(inside / (1 - inside))
    return logits
