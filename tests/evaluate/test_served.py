"""Throughput and latency from the times at which pieces came, by hand."""

from __future__ import annotations

from math import isnan

import pytest

from dspine.evaluate.served import Load, Served, percentiles

# Two requests at once: 9 tokens in rounds of four, and a single token; a third one that came in one piece.
LOAD = Load(4.0, (Served(9, (1.0, 1.5, 2.5), 8, 2), Served(1, (0.5,), 0, 0), Served(6, (2.0,), 5, 2)))


def test_rates_and_times_by_hand():
    assert (LOAD.tokens, LOAD.tokens_per_second) == (16, 4.0)
    assert LOAD.tpot == (2.5 - 1.0) / 8, "only a request of several pieces has a time a token"
    assert LOAD.tau == (8 + 0 + 5) / (2 + 0 + 2)
    numbers = LOAD.numbers()
    assert numbers["ttft"] == {"p50": 1.0, "p90": 2.0, "p99": 2.0}
    assert numbers["itl"] == {"p50": 0.5, "p90": 1.0, "p99": 1.0}
    assert numbers["rounds"] == (13, 4)


def test_a_server_that_does_not_tell_its_rounds_has_no_tau():
    silent = Load(1.0, (Served(3, (0.1, 0.2)),))
    assert silent.tau is None
    assert silent.numbers()["rounds"] is None
    assert isnan(Load(1.0, (Served(1, (0.1,)),)).tpot)


@pytest.mark.parametrize(("count", "found"), [(1, (1, 1, 1)), (10, (5, 9, 10)), (100, (50, 90, 99)), (2, (1, 2, 2))])
def test_percentiles_are_values_that_occurred(count, found):
    assert tuple(percentiles(range(count, 0, -1)).values()) == found
