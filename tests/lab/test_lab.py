"""The lab from a recipe to its table, on the shipped nano target with a few steps; a repeat does nothing again."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspine.lab import comparison
from dspine.lab.comparison import ALL, compare
from dspine.lab.table import lines_of

SMALL = [
    "build.prompts.count=90",
    "data.held_out=1",
    "data.mix=[{source: story, count: 2}, {source: code, count: 2}]",
    "data.max_new_tokens=24",
    "training.window_samples=2",
    "training.anchors_per_sample=4",
    "evaluate.prompts=2",
    "evaluate.max_new_tokens=12",
]


def test_a_comparison_is_trained_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = [*SMALL, f"output={tmp_path / 'lab'}"]
    monkeypatch.setattr(comparison, "TIMED", 1)
    found = compare("nano-lab", drafters=["dflash"], steps=2, overrides=settings)
    assert found is not None
    lines = lines_of(found)
    assert {line.title for line in lines} == {"DSpine", "DFlash"}
    for line in lines:
        assert set(line.tau[0.0]) == set(line.tau[1.0]) == {"story", "code", ALL}
        assert line.identical == line.compared == 2
        assert line.steps == 2
        assert len(line.places) == 7
    assert lines[0].parameters != lines[1].parameters

    def refuse(*_: object) -> None:
        raise AssertionError("done twice")

    monkeypatch.setattr("dspine.train.ablation.train", refuse)
    monkeypatch.setattr("dspine.evaluate.contest.serve", refuse)
    answers = [path for path in found.folder.glob("*-t?-*.jsonl") if not path.name.startswith("acceptance")]
    before = {path: path.read_bytes() for path in answers}
    assert len(before) == 5  # plain, and two drafters at two temperatures
    again = compare("nano-lab", drafters=["dflash"], steps=2, overrides=settings)
    assert again is not None
    assert again.timings == found.timings
    assert {path: path.read_bytes() for path in before} == before
    assert [line.tau for line in lines_of(again)] == [line.tau for line in lines]
