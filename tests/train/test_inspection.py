"""What data is said to hold: the mask as text, lengths, repetitions, overlaps, and the cost that follows."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import yaml
from tests.support.tiny_target import tiny_target

from dspine.config import read_recipe
from dspine.drafter import KINDS
from dspine.errors import DataError
from dspine.train.budget import budget
from dspine.train.features import store_settings, write_features
from dspine.train.inspection import inspect
from dspine.train.materials import answer, selection
from dspine.train.prepare import build_drafter, drafter_config
from dspine.train.responses import ResponseRow, read_responses, training_sequences

QUESTION = "Tell me in ten words or fewer why the sky over the sea is blue"


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture
def recipe(tmp_path):
    asked = [{"id": f"p{i}", "source": "test", "prompt": f"Say {i}"} for i in range(4)]
    asked += [{"id": "p4", "source": "test", "prompt": "say 0!"}, {"id": "p5", "source": "test", "prompt": QUESTION}]
    asked += [{"id": "d", "source": "test", "turns": ["One?", "And two?"]}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    content = {
        "target": "tiny",
        "output": str(tmp_path / "run"),
        "data": {"prompts": str(tmp_path / "prompts.jsonl"), "max_new_tokens": 6},
        "drafter": {
            "mask_token": "<|mask|>",
            "num_hidden_layers": 2,
            "target_layer_ids": [1, 3],
            "block_size": 4,
            "transfer_rank": 16,
            "message_size": 8,
            "top_k": 4,
        },
        "training": {"epochs": 3, "window_samples": 4, "anchors_per_sample": 3, "max_length": 100},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "recipe.yaml"


def test_prompts_alone(recipe, target, tmp_path):
    (tmp_path / "eval.jsonl").write_text(json.dumps({"prompt": QUESTION.upper()}) + "\n")
    found = inspect(read_recipe(recipe), target, [tmp_path / "eval.jsonl"])
    assert (found.asked, found.repeated_prompts, found.responses) == (7, 1, None)
    assert found.prompts is not None
    assert found.prompts["least"] < found.prompts["most"]
    assert [(o.met, o.rows) for o in found.overlaps] == [(["eval/1"], ["p5"])]
    assert not (tmp_path / "run").exists()


def test_responses_are_shown_as_they_are_supervised(recipe, target):
    asked = read_recipe(recipe)
    answer(asked, selection(asked).train, target)
    found = inspect(asked, target, shown=100).responses
    rows = {row.id: row for row in read_responses(asked.data.responses)}
    assert found is not None
    assert found.made is not None
    assert (found.made["target"], found.made["thinking"]) == ("tiny-qwen3", False)
    assert (found.rows, found.unfinished) == (8, sum(row.finish_reason == "length" for row in rows.values()))
    decode = target.tokenizer.decode
    assert len(found.shown) == found.sequences == len(training_sequences(list(rows.values())))
    for name, shown in found.shown.items():
        assert "".join(piece.text for piece in shown) == decode(rows[name].prompt_ids + rows[name].response_ids)
        assert shown[-1].supervised
        assert shown[-1].text == decode(rows[name].response_ids)
        assert not shown[0].supervised
    assert found.lengths["response"]["most"] <= 6
    assert found.supervised == sum(sum(s.loss_mask) for s in training_sequences(list(rows.values())))


def test_what_cannot_be_trained_on_is_counted(recipe, target, tmp_path):
    def row(name, prompt, response, finish="stop"):
        return ResponseRow(name, "a", [], [65] * prompt, response, finish)

    rows = [
        row("a", 3, [66, 67, 257]),
        row("b", 3, [66, 67, 257]),
        row("c", 90, [66] * 20, "length"),
        row("d", 3, [257]),
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(asdict(r)) + "\n" for r in [*rows, row("e", 120, [66, 257])]))
    asked = read_recipe(recipe, [f"data.responses={tmp_path / 'r.jsonl'}"])
    found = inspect(asked, target).responses
    assert found is not None
    assert (found.made, found.rows, found.sequences) == (None, 5, 5)
    assert (found.repeated, found.unfinished, found.cut, found.unusable) == (1, 1, 2, 2)
    assert found.supervised == 3 + 3 + 10
    assert list(found.shown) == ["a", "b"]
    assert found.lengths["prompt"] == {"least": 3, "median": 3, "90 %": 120, "99 %": 120, "most": 120}


def test_held_out_prompts_are_looked_for_and_nothing_is_an_error(recipe, target, tmp_path):
    mix = ["data.mix=[{source: test, count: 4}]", "data.held_out=2"]
    [overlap] = inspect(read_recipe(recipe, mix), target).overlaps
    assert (overlap.name, overlap.prompts) == ("data.held_out", 2)
    (tmp_path / "prompts.jsonl").unlink()
    with pytest.raises(DataError, match="nothing to look at"):
        inspect(read_recipe(recipe), target)


def test_the_disk_is_what_a_store_takes(recipe, target, tmp_path):
    asked = read_recipe(recipe)
    answer(asked, selection(asked).train, target)
    found = inspect(asked, target).responses
    rows = read_responses(asked.data.responses)
    store = write_features(target, rows, (1, 3), tmp_path / "s", max_length=100, progress=False)
    written = sum(path.stat().st_size for path in store.path.glob("*.safetensors"))
    assert found is not None
    assert 0 <= written - found.budget.store_bytes < 600  # the shard's own header
    online = inspect(read_recipe(recipe, ["features.mode=online"]), target).responses
    assert online is not None
    assert online.budget.store_bytes == 0
    assert online.budget.target_flops == pytest.approx(3 * found.budget.target_flops)


def test_operations_by_hand(recipe, target):
    """Two sequences of 10 and 12 tokens, 3 blocks of 4 rows each: counted from the sizes of F1."""
    asked = read_recipe(recipe, ["training.window_samples=2"])
    rows = [ResponseRow(f"r{i}", "a", [], [1, 2, 3], list(range(10, 17 + 2 * i)), "length") for i in range(2)]
    config = drafter_config(asked, target)
    sequences = training_sequences(rows)
    cost = budget(asked, target, config, sequences, store_settings(target, rows, (1, 3)))
    assert (cost.steps, cost.epochs, cost.tokens, cost.blocks) == (3, 3.0, 22, 6)
    d, ffn, keys, rank, message = 64, 128, 32, 16, 8
    layer = 2 * d * d + 2 * d * keys + 3 * d * ffn
    row = 2 * (layer + rank * d + d * message) + 3 * message * rank
    token = 2 * d * d + 2 * 2 * d * keys
    forward = 2 * (token * 22 + row * 6 * 4)
    scores = 2 * d * 320 * 6 * 3
    assert cost.training_flops == 3 * (3 * forward + 3 * scores)
    assert cost.target_flops == 2 * (6 * layer * 22 + d * 320 * 16)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_parameters_are_those_of_the_network(recipe, target, kind):
    plain = [] if kind == "dspine" else [f"drafter.{name}=null" for name in ("transfer_rank", "message_size", "top_k")]
    if kind == "eagle3":
        plain += ["drafter.num_hidden_layers=1"]
    asked = read_recipe(recipe, [f"drafter.kind={kind}", *plain])
    rows = [ResponseRow("r", "a", [], [1, 2, 3], list(range(10, 20)), "length")]
    cost = budget(
        asked, target, drafter_config(asked, target), training_sequences(rows), store_settings(target, rows, (1, 3))
    )
    drafter, _ = build_drafter(asked, target, rows)
    assert cost.parameters == sum(p.numel() for p in drafter.parameters())
    assert cost.training_flops > 0
