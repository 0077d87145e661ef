"""The lab from a recipe to its table, on the shipped nano target with a few steps; a repeat does nothing again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import pytest

from dspine.checkpoint import find_drafter
from dspine.config import read_recipe
from dspine.errors import ConfigError
from dspine.evaluate.contest import stage_key
from dspine.evaluate.prompts import TaskPrompt
from dspine.evaluate.sources import Asked
from dspine.evaluate.tasks.task import Task, as_it_is
from dspine.lab import comparison
from dspine.lab.comparison import ALL, compare
from dspine.lab.contestants import Contestant
from dspine.lab.table import lines_of, save
from dspine.report.found import find
from dspine.report.sections import sections
from dspine.target import load_target
from dspine.train import ablation

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


@pytest.mark.parametrize("means", [{"kernels": "fused"}, {"capture": "on"}])
def test_what_no_engine_can_run_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, means: dict[str, Any]
):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained first")

    monkeypatch.setattr(comparison, "ablate", refuse)
    with pytest.raises(ConfigError, match=r"kernels: |CUDA graphs"):
        compare("nano-lab", overrides=[*SMALL, f"output={tmp_path / 'lab'}"], **means)


def test_an_interrupt_among_seeds_loses_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = [*SMALL, f"output={tmp_path / 'lab'}"]
    timings = {stage_key(1, "DSpine"): {"round": dict.fromkeys(("draft", "verify", "other"), 0.001)}}
    timings["ratio/1/DSpine"] = {"median": 1.0}
    monkeypatch.setattr(comparison, "speed", lambda *_: timings)
    train, started = ablation.train, []

    def stopped_at(count: int) -> Callable[..., object]:
        def stand_in(recipe: object, overrides: list[str]) -> object:
            started.append(overrides[-1])
            return train(recipe, overrides) if len(started) != count else SimpleNamespace(drafter=None, acceptance=None)

        return stand_in

    monkeypatch.setattr(ablation, "train", stopped_at(2))
    assert compare("nano-lab", drafters=["dspine"], steps=2, seeds=(0, 1), overrides=settings) is None
    found = compare("nano-lab", drafters=["dspine"], steps=2, seeds=(0, 1), overrides=settings)
    assert started == ["training.seed=0", "training.seed=1", "training.seed=1"]
    assert found is not None
    [line] = lines_of(found)
    taus = [outcome.families[ALL].whole.tau for outcome in found.outcomes if outcome.temperature == 0]
    assert line.seeds == (0, 1)
    assert len(taus) == 2
    greedy = line.tau[0.0][ALL]
    assert greedy.mean == mean(taus)
    assert (greedy.low, greedy.high) == (greedy.mean - stdev(taus), greedy.mean + stdev(taus))
    [section] = sections(find([save(found, [line])]))
    assert "Spreads are standard deviations over seeds" in section.says
    bar = section.charts[0].paint.keywords["series"]["T = 0"][0]
    assert (bar.value, bar.low, bar.high) == (greedy.mean, greedy.low, greedy.high)


def test_a_budget_takes_the_place_of_a_recipes_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def ablate(recipe: str, names: list[str], *, overrides: list[str], seeds: list[int]) -> SimpleNamespace:
        asked.append(read_recipe(recipe, overrides).training)
        return SimpleNamespace(finished=False)

    monkeypatch.setattr(comparison, "ablate", ablate)
    settings = [f"output={tmp_path / 'lab'}", "training.steps=null", "training.epochs=3"]
    assert compare("nano-lab", steps=2, overrides=settings) is None
    assert (asked[0].steps, asked[0].epochs) == (2, None)


def test_answers_to_prompts_that_are_no_longer_held_out_count_nowhere(tmp_path: Path):
    """The file of answers knows more prompts than a later call asks."""
    entry = Contestant("DSpine", 0, find_drafter("nano"), "digest", parameters=1, steps=1, minutes=1.0)
    texts = ("What is 3 + 4?", "Write a function that doubles a number.", "Hello!")
    prompts = [TaskPrompt(f"a/{number}", text) for number, text in enumerate(texts)]
    found = []
    for count in (3, 1):
        asked = [Asked(Task(name="a", file="", wording=as_it_is), "held out", prompts[:count])]
        outcomes = comparison.acceptance(load_target("nano"), entry, asked, tmp_path, 8, "auto", "auto")
        found.append([outcome.families for outcome in outcomes])
    for families in found[1]:
        assert families[ALL] == families["a"]
        assert families[ALL].requests == 1
    assert found[0][0][ALL].requests == 3
