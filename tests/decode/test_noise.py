"""Noise is looked up by (seed, stream, position): nothing else may matter, and 1.0 is never reached."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspine.decode.noise import SEED_LIMIT, uniform_rows, uniforms

STREAMS = ("draft", "accept", "next")
PINNED = {
    "draft": [75357, 10272716, 6207425],
    "accept": [14995842, 1337672, 13540140],
    "next": [15309271, 8310775, 3377945],
}

seeds = st.integers(0, SEED_LIMIT - 1)
positions = st.integers(0, 2**40)


@given(seeds, st.sampled_from(STREAMS), positions, st.integers(0, 40))
def test_a_value_depends_on_its_position_alone(seed, stream, position, count):
    together = uniforms(seed, stream, position, count)
    apart = [uniforms(seed, stream, position + i, 1)[0] for i in range(count)]
    assert together.tolist() == apart


@given(seeds, st.sampled_from(STREAMS), positions)
def test_values_are_float32_multiples_of_2_to_the_minus_24_below_one(seed, stream, position):
    values = uniforms(seed, stream, position, 64)
    assert values.dtype == np.float32
    assert (values >= 0).all()
    assert (values < 1).all()
    steps = values.astype(np.float64) * 2**24
    assert (steps == np.floor(steps)).all()


def test_the_largest_word_stays_below_one(monkeypatch):
    class Largest:
        def __init__(self, key, counter):
            pass

        def random_raw(self, size):
            return np.full(size, 2**64 - 1, dtype=np.uint64)

    monkeypatch.setattr(np.random, "Philox", Largest)
    assert uniforms(0, "next", 0, 3).tolist() == [1 - 2.0**-24] * 3


@pytest.mark.parametrize("stream", STREAMS)
def test_values_are_uniform(stream):
    counts = np.bincount((uniforms(11, stream, 0, 2**16) * 64).astype(int), minlength=64)
    assert ((counts - 1024) ** 2 / 1024).sum() < 120  # 63 degrees of freedom, beyond it once in 20 thousand


def test_streams_seeds_and_neighbours_are_independent():
    count = 2**15
    series = [uniforms(seed, stream, 0, count) for seed in (0, 1, 2**63) for stream in STREAMS]
    series.append(uniforms(0, "draft", 1, count))
    correlation = np.corrcoef(series) - np.eye(len(series))
    assert np.abs(correlation).max() < 5 / count**0.5


def test_the_values_are_fixed_for_good():
    """A seed that somebody wrote down gives the same text after every upgrade."""
    steps = {s: [int(v * 2**24) for v in uniforms(2609, s, 36173, 3)] for s in STREAMS}
    assert steps == PINNED


def test_rows_are_the_requests_side_by_side():
    rows = uniform_rows([5, 5, 9], "accept", [0, 7, 7], 4)
    assert rows.dtype == torch.float32
    assert rows.shape == (3, 4)
    for row, (seed, position) in zip(rows, [(5, 0), (5, 7), (9, 7)], strict=True):
        assert row.tolist() == uniforms(seed, "accept", position, 4).tolist()
    assert uniform_rows([1, 2], "draft", [3, 4], 0).shape == (2, 0)
