"""Bootstrap intervals: over requests, seeded, as wide as theory says."""

from __future__ import annotations

import random
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine.interval import bootstrap

PAIRS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 100)), min_size=1, max_size=12)


def test_equal_requests_leave_nothing_to_chance():
    found = bootstrap([(6, 3)] * 5)
    assert (found.low, found.high) == (2, 2)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    pairs = [(random.Random(i).random(), 1.0) for i in range(20)]
    assert bootstrap(pairs) == bootstrap(pairs)
    assert bootstrap(pairs, seed=1) != bootstrap(pairs)


def test_a_mean_has_the_width_that_theory_gives_it():
    """±1.96 σ/√n for 400 draws of a uniform, σ = 0.2887: ±0.0283."""
    chance = random.Random(7)
    pairs = [(chance.random(), 1.0) for _ in range(400)]
    mean = sum(value for value, _ in pairs) / 400
    found = bootstrap(pairs)
    assert found.low == pytest.approx(mean - 0.0283, abs=0.004)
    assert found.high == pytest.approx(mean + 0.0283, abs=0.004)


def test_two_requests_by_hand():
    """(8 of 1) and (2 of 2): a resample has 8, 10/3 or 1, with chances 1/4, 1/2, 1/4."""
    pairs = [(8, 1), (2, 2)]
    assert bootstrap(pairs, level=0.95).low == 1
    assert bootstrap(pairs, level=0.95).high == 8
    inner = bootstrap(pairs, level=0.4)  # leaves out 30 % on either side
    assert inner.low == inner.high == pytest.approx(10 / 3)


@given(PAIRS)
def test_it_lies_within_the_requests_own_ratios_and_a_higher_level_holds_a_lower(pairs):
    ratios = [above / below for above, below in pairs]
    wide, narrow = bootstrap(pairs, draws=100), bootstrap(pairs, draws=100, level=0.5)
    assert min(ratios) - 1e-9 <= wide.low <= narrow.low <= narrow.high <= wide.high <= max(ratios) + 1e-9


def test_requests_without_rounds_do_not_break_it():
    assert isnan(bootstrap([]).low)
    assert isnan(bootstrap([(0, 0)]).high)
    found = bootstrap([(6, 3), (0, 0)])
    assert (found.low, found.high) == (2, 2)
