"""Sequential temperature scaling: temperatures that are known come back, and products agree with frequencies."""

from __future__ import annotations

import numpy as np
import pytest

from dspine.decode.calibration import FEWEST, Recorder, Round, ece, fit
from dspine.decode.schedule import Seat
from dspine.errors import DataError

PLACES = 3


def rounds(temperatures: list[float], count: int = 6000, seed: int = 0) -> list[Round]:
    """Rounds whose logits are wrong by known temperatures."""
    chance = np.random.default_rng(seed)
    zeta = chance.normal(1.0, 2.0, (count, PLACES))
    truth = 1 / (1 + np.exp(-zeta))
    stood = (chance.random((count, PLACES)) < truth).cumprod(1).sum(1)
    said = 1 / (1 + np.exp(-zeta * np.array(temperatures)))
    return [Round(tuple(c), int(a)) for c, a in zip(said, stood, strict=True)]


def test_known_temperatures_come_back() -> None:
    known = [2.5, 0.5, 1.6]
    found = fit(rounds(known), PLACES)
    assert found.temperatures == pytest.approx(known, rel=0.25)
    assert found.ece_after < 0.6 * found.ece_before
    assert found.rounds == 6000


def test_what_is_right_stays_nearly_so() -> None:
    found = fit(rounds([1.0] * PLACES), PLACES)
    assert found.temperatures == pytest.approx([1.0] * PLACES, rel=0.3)
    assert found.ece_after <= found.ece_before


def test_places_before_are_frozen_at_what_was_fitted() -> None:
    """A place's temperature is fitted to the product: behind a place that was mended it has nothing to make up for."""
    found = fit(rounds([4.0, 1.0, 1.0]), PLACES)
    assert found.temperatures[0] == pytest.approx(4.0, rel=0.25)
    assert found.temperatures[1:] == pytest.approx([1.0, 1.0], rel=0.3)


def test_the_error_is_the_gap_in_bins() -> None:
    chances = np.array([0.1, 0.1, 0.9, 0.9])
    assert ece(chances, np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(0.1)
    assert ece(chances, np.array([1.0, 1.0, 0.0, 0.0])) == pytest.approx(0.9)
    assert ece(np.array([1.0]), np.array([1.0])) == 0


def test_too_few_rounds_are_refused_by_place() -> None:
    short = [Round(each.confidence[:2], min(each.accepted, 2)) for each in rounds([1.0] * PLACES, FEWEST)]
    with pytest.raises(DataError, match="place 3 was verified in 0 rounds"):
        fit(short, PLACES)
    assert len(fit(short, 2).temperatures) == 2


def test_a_recorder_keeps_verified_places_alone() -> None:
    recorder = Recorder()
    seats = [Seat(0, 3), Seat(1, 1), Seat(2, 0)]
    assert recorder.lengths(seats) == [3, 1, 0]
    assert recorder.cut(seats, [3, 1, 0], [[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.1] * 3]) == [3, 1, 0]
    recorder.learn(seats, [3, 1, 0], [2, 1, 0])
    assert recorder.rounds == [Round((0.9, 0.8, 0.7), 2), Round((0.6,), 1)]
