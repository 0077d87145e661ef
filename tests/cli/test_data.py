"""`dspine data check`: the words for what the room of training found."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import assert_fault, parsed


@pytest.fixture
def words(recipe, models, tmp_path):
    """The command for three prompts, of which one stands in a file of evaluation prompts."""
    for name, said in (("prompts", ["Say one", "Say two", "Say TWO."]), ("eval", ["say one?", "other"])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in said))
    sizes = {"num_hidden_layers": 2, "target_layer_ids": [1, 3], "transfer_rank": 16, "message_size": 8}
    changes = [f"drafter.{name}={value}" for name, value in sizes.items()] + [f"target={models.target}"]
    changes.append("data.max_new_tokens=4")
    return [recipe, *(word for change in changes for word in ("--set", change))]


def test_prompts_then_responses(run, words, tmp_path):
    check = ["data", "check", *words, "--against", tmp_path / "eval.jsonl"]
    result = run(*check)
    assert result.exit_code == 0, result.stderr
    assert "3 prompts; 1 repeat" in result.stdout
    assert "eval.jsonl: 1 of 2 evaluation prompts stand in 1 rows (eval/1); in 1 of them: “say one”" in result.stdout
    assert "There are no responses yet" in result.stderr
    assert run("regenerate", *words).exit_code == 0
    result = run(*check)
    assert result.exit_code == 0, result.stderr
    assert "<|im_start|>user\nSay one<|im_end|>\n<|im_start|>assistant\n⟦" in result.stdout
    assert "3 responses (by " in result.stdout
    assert "thinking off, temperature 0.0, template " in result.stdout
    assert "of features on disk" in result.stdout
    assert "⟦" not in run(*check, "--samples", 0).stdout
    report = parsed(run(*check, "--json"))
    assert report["responses"]["rows"] == 3
    assert report["overlaps"][0]["met"] == ["eval/1"]


def test_what_cannot_be_looked_at(run, words, tmp_path):
    assert_fault(run("data", "check", *words, "--against", tmp_path / "none.jsonl"), 1, "cannot read", "none.jsonl")
    (tmp_path / "prompts.jsonl").unlink()
    assert_fault(run("data", "check", *words), 1, "nothing to look at")
    assert_fault(run("data", "check", tmp_path / "none.yaml"), 1, "none.yaml")


def test_a_target_that_is_yet_to_be_built(run, tmp_path):
    result = run("data", "check", "nano", "--set", f"output={tmp_path}")
    assert_fault(result, 1, "is not built yet", "Build it first")


def test_a_dry_run_counts_what_will_be_built(run, tmp_path):
    words = ("--set", f"output={tmp_path}", "--set", "data.max_new_tokens=8", "--set", "training.steps=1", "--json")
    sources = [{"source": name, "count": 20} for name in ("story", "code")]
    report = parsed(run("train", "nano-ablation", "--dry-run", *words, "--set", f"data.mix={json.dumps(sources)}"))
    assert (report["sequences"], report["made_up"]) == (40, True)
