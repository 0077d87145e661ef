"""Schedules: written-down values at the corners, properties between them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine.train.curriculum import (
    alignment_weight,
    draw_replaced,
    learning_rate,
    replaced_layers,
    replacement_probability,
    warmup_steps,
)
from dspine.train.windows import epoch_windows, windows_per_epoch


def test_the_papers_numbers():
    assert warmup_steps(3655, 0.04) == 146
    assert [replaced_layers(layers) for layers in (1, 2, 3, 4, 5, 6)] == [0, 1, 2, 2, 3, 4]
    assert alignment_weight(146, peak=0.5, warmup=146) == 0.5
    assert alignment_weight(73, peak=0.5, warmup=146) == 0.25
    assert alignment_weight(0, peak=0.5, warmup=146) == 0.0


def test_learning_rate_rises_then_falls_to_zero():
    rates = [learning_rate(step, peak=6e-4, total=100, warmup=4) for step in range(101)]
    assert rates[:4] == pytest.approx([1.5e-4, 3e-4, 4.5e-4, 6e-4])
    assert rates[4] == pytest.approx(6e-4)
    assert rates[52] == pytest.approx(3e-4)
    assert rates[100] == pytest.approx(0, abs=1e-12)
    assert all(a >= b for a, b in pairwise(rates[4:]))


def test_no_warm_up():
    assert learning_rate(0, peak=1.0, total=10, warmup=0) == 1.0
    assert alignment_weight(0, peak=0.5, warmup=0) == 0.5


def test_replacement_holds_then_falls_to_zero():
    values = [replacement_probability(step, total=600) for step in range(600)]
    assert set(values[:100]) == {0.5}
    assert values[150] == pytest.approx(0.25)
    assert values[199] == pytest.approx(0.005)
    assert set(values[200:]) == {0.0}


@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    probability=st.sampled_from([0.0, 0.3, 1.0]),
    epoch=st.integers(0, 3),
)
def test_replacement_is_drawn_for_real_blocks_and_by_sample(counts, probability, epoch):
    names = [f"s{i}" for i in range(len(counts))]
    drawn = draw_replaced(counts, probability, seed=0, epoch=epoch, samples=names)
    assert drawn.shape == (len(counts), max(1, *counts))
    for row, (count, name) in enumerate(zip(counts, names, strict=True)):
        assert not drawn[row, count:].any()
        alone = draw_replaced([count], probability, seed=0, epoch=epoch, samples=[name])
        assert drawn[row, :count].tolist() == alone[0, :count].tolist()
        if probability in (0.0, 1.0):
            assert drawn[row, :count].float().mean().nan_to_num(probability) == probability


def test_replacement_has_its_probability_and_changes_with_the_epoch():
    draws = [draw_replaced([500], 0.3, seed=0, epoch=epoch, samples=["a"]) for epoch in (0, 1)]
    assert abs(draws[0].float().mean() - 0.3) < 0.07
    assert draws[0].tolist() != draws[1].tolist()


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=70), window=st.integers(1, 9), epoch=st.integers(0, 2))
def test_windows_hold_every_sequence_once_an_epoch(lengths, window, epoch):
    windows = epoch_windows(lengths, window, seed=0, epoch=epoch)
    assert sorted(i for w in windows for i in w) == list(range(len(lengths)))
    assert len(windows) == windows_per_epoch(len(lengths), window)
    assert all(0 < len(w) <= window for w in windows)


def test_windows_change_with_the_epoch_and_group_by_length():
    lengths = [1 + i % 40 for i in range(400)]
    first, second = (epoch_windows(lengths, 8, seed=0, epoch=epoch) for epoch in (0, 1))
    assert first == epoch_windows(lengths, 8, seed=0, epoch=0)
    assert first != second
    spread = [max(lengths[i] for i in w) - min(lengths[i] for i in w) for w in first]
    assert sum(spread) / len(spread) < 6
    assert [lengths[w[0]] for w in first] != sorted(lengths[w[0]] for w in first)
