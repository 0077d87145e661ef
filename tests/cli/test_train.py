"""`dspine train`: bad recipes leave nothing behind, and every ending has its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import assert_fault, parsed

import dspine.train.trainer
from dspine.train.state import Progress
from dspine.train.trainer import Summary


def test_a_missing_recipe(run, tmp_path):
    assert_fault(run("train", tmp_path / "none.yaml"), 1, "none.yaml", "cannot read the recipe")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("target: [", "not valid YAML"),
        ("- target", "no recipe"),
        ("target: smollm2", "'output' is missing"),
    ],
)
def test_a_broken_recipe(run, tmp_path, content, said):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    assert_fault(run("train", path), 1, "recipe.yaml", said)


def test_an_unknown_key_lists_the_known_ones(run, recipe):
    recipe.write_text(recipe.read_text().replace("steps: 3", "steps: 3, stepz: 4"))
    assert_fault(run("train", recipe), 1, "stepz", "warmup_ratio")


@pytest.mark.parametrize(
    ("override", "said"),
    [("training.steps", "key=value"), ("training.stepz=1", "stepz"), ("training.steps=no", "training.steps")],
)
def test_a_bad_override(run, recipe, override, said):
    assert_fault(run("train", recipe, "--set", override), 1, said)


def test_a_refused_run_leaves_nothing_behind(run, recipe: Path):
    before = sorted(recipe.parent.iterdir())
    assert_fault(run("train", recipe), 1, "no-target")
    assert sorted(recipe.parent.iterdir()) == before


def test_missing_responses_say_how_to_get_them(run, recipe, models):
    result = run("train", recipe, "--set", f"target={models.target}")
    assert_fault(result, 1, "responses.jsonl", "dspine regenerate")


@pytest.fixture
def ending(monkeypatch):
    """Replace the training itself; returns what it was called with."""
    calls: list[tuple[object, ...]] = []

    def end(finished: bool):
        def train(recipe: Path, overrides: object, *, resume: bool) -> Summary:
            calls.append((recipe, tuple(overrides), resume))
            return Summary(finished, Path("run/drafter") if finished else None, Progress(step=2), 3, 4, 0, None)

        monkeypatch.setattr(dspine.train.trainer, "train", train)
        return calls

    return end


def test_a_finished_run_prints_its_folder(run, recipe, ending):
    calls = ending(finished=True)
    result = run("train", recipe, "--set", "training.steps=5", "--set", "training.seed=1")
    assert (result.exit_code, result.stdout) == (0, "run/drafter\n")
    assert calls == [(recipe, ("training.steps=5", "training.seed=1"), True)]


def test_json_and_fresh(run, recipe, ending):
    calls = ending(finished=True)
    report = parsed(run("train", recipe, "--fresh", "--json"))
    assert (report["drafter"], report["progress"]["step"], report["total"]) == ("run/drafter", 2, 3)
    assert calls[0][2] is False


def test_an_interrupted_run_says_so_by_its_exit_code(run, recipe, ending):
    ending(finished=False)
    assert_fault(run("train", recipe), 130)
