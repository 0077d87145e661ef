"""`dspine train`: bad recipes leave nothing behind, and every ending has its exit code."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import assert_fault, parsed

import dspine.decode.engine
import dspine.train.nano.target
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


def test_an_unknown_key_leads_to_the_known_ones(run, recipe):
    recipe.write_text(recipe.read_text().replace("steps: 3", "steps: 3, stepz: 4, colour: red"))
    said = ("'training.stepz': did you mean 'steps'?", "Keys of training:", "warmup_ratio")
    assert_fault(run("train", recipe), 1, *said)


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


def test_neither_responses_nor_prompts(run, recipe, models):
    result = run("train", recipe, "--set", f"target={models.target}")
    assert_fault(result, 1, "responses.jsonl", "prompts.jsonl", "Give the prompts")


NANO = """\
output: runs/tiny
build:
  target: {builder: nano, conversations: 60, tokenizer_conversations: 60, vocabulary: 300, hidden_size: 32,
    intermediate_size: 32, layers: 4, heads: 2, kv_heads: 1, head_dim: 16, steps: 6, batch_tokens: 512, save_steps: 2}
  prompts: {builder: nano, count: 12}
data: {max_new_tokens: 8, held_out: 1, mix: [{source: story, count: 3}, {source: code, count: 3}]}
drafter: {mask_token: <|mask|>, num_hidden_layers: 1, block_size: 4, target_layer_ids: [1], transfer_rank: 8,
  message_size: 8, top_k: 4}
training: {steps: 3, window_samples: 2, anchors_per_sample: 4}
evaluate: {prompts: 1, max_new_tokens: 4}
"""


def interrupting(function, call):
    """The function, but for a Ctrl-C at one of its calls (from 1)."""
    calls = iter(range(1, 1000))

    def interrupted(*given, **named):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
        return function(*given, **named)

    return interrupted


def test_one_command_from_nothing_whatever_interrupts_it(run, tmp_path, monkeypatch):
    """Stopped while the target is trained, while it answers, and while the drafter is trained; then to the end."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(NANO)
    output = Path("runs/tiny")
    for place, name, call, left in (
        (dspine.train.nano.target, "_step", 3, "target-checkpoints"),
        (dspine.decode.engine.Engine, "step", 6, "responses.jsonl"),
        (dspine.train.trainer.Trainer, "_advance", 2, "checkpoints"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, interrupting(getattr(place, name), call))
            assert_fault(run("train", "tiny.yaml"), 130)
        assert (output / left).exists()
        assert not (output / "drafter").exists()
    result = run("train", "tiny.yaml")
    assert (result.exit_code, result.stdout) == (0, "runs/tiny/drafter\n")
    assert "Going on from step 2" in result.stderr
    assert {path.name for path in output.iterdir()} == {
        "prompts.jsonl", "target", "responses.jsonl", "features", "checkpoints", "log.jsonl", "best",
        "drafter",
    }  # fmt: skip
    assert run("generate", "Hi", "--target", output / "target", "--drafter", output / "drafter", "-n", 4).exit_code == 0
    again = run("regenerate", "tiny.yaml")
    assert "0 answers written, 6 were there before" in again.stderr


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
    assert calls == [(str(recipe), ("training.steps=5", "training.seed=1"), True)]


def test_json_and_fresh(run, recipe, ending):
    calls = ending(finished=True)
    report = parsed(run("train", recipe, "--fresh", "--json"))
    assert (report["drafter"], report["progress"]["step"], report["total"]) == ("run/drafter", 2, 3)
    assert calls[0][2] is False


def test_an_interrupted_run_says_so_by_its_exit_code(run, recipe, ending):
    ending(finished=False)
    assert_fault(run("train", recipe), 130)
