"""Target, prompts and responses are made where they are missing, gone on with where they were begun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from tests.support.tiny_target import tiny_target

from dspine.config import Recipe, read_recipe
from dspine.decode.engine import Engine
from dspine.durable import LineFile
from dspine.errors import ConfigError, DataError
from dspine.train.materials import answer, build, responses, selection
from dspine.train.responses import read_responses

COUNT = 6


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Six prompts, one of them with a second turn and one too long; nothing answered yet."""
    asked = [{"id": f"p{i}", "source": "test", "prompt": f"Say {i}"} for i in range(COUNT - 2)]
    asked += [{"id": "p4", "source": "test", "turns": ["One?", "And two?"]}]
    asked += [{"id": "p5", "source": "test", "prompt": "long " * 40}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    content = {
        "target": "tiny",
        "output": str(tmp_path / "run"),
        "data": {"prompts": str(tmp_path / "prompts.jsonl"), "max_new_tokens": 5, "max_prompt_tokens": 120, "batch": 2},
        "drafter": {"mask_token": "<|mask|>"},
        "training": {"steps": 1},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return read_recipe(tmp_path / "recipe.yaml")


def changed(recipe: Recipe, **data) -> Recipe:
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})


def by_id(rows):
    return {row.id: row for row in rows}


def test_missing_responses_are_made_once(recipe, target, capfd):
    rows = responses(recipe, target)
    assert {row.id for row in rows} == {"p0", "p1", "p2", "p3", "p4", "p4#2"}
    assert recipe.data.responses == recipe.output / "responses.jsonl"
    assert "No responses at" in capfd.readouterr().err
    before = recipe.data.responses.read_bytes()
    assert responses(recipe, target) == rows
    assert recipe.data.responses.read_bytes() == before
    assert capfd.readouterr().err == ""


def test_a_stopped_run_is_finished(recipe, target):
    whole = by_id(responses(recipe, target))
    path = recipe.data.responses
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed in the middle of the third row
    assert by_id(responses(recipe, target)) == whole
    for cut in (b"", lines[0][:9], lines[0]):  # killed before the first, whatever of the head there was
        path.write_bytes(cut)
        assert by_id(responses(recipe, target)) == whole


def test_a_file_without_a_whole_row_binds_nobody(recipe, target):
    """Stopped before its first answer, and then asked otherwise."""
    responses(recipe, target)
    path = recipe.data.responses
    head, row = path.read_bytes().splitlines(keepends=True)[:2]
    for cut in (head, head + row[:20]):
        path.write_bytes(cut)
        assert all(len(row.response_ids) <= 3 for row in responses(changed(recipe, max_new_tokens=3), target))


def test_finished_responses_are_read_by_several_processes_at_once(recipe, target):
    rows = responses(recipe, target)
    held = LineFile(recipe.data.responses)
    assert responses(recipe, target) == rows
    held.close()


def test_an_interrupt_loses_no_answer(recipe, target, monkeypatch):
    whole = by_id(responses(recipe, target))
    recipe.data.responses.unlink()
    step, left = Engine.step, iter(range(8))

    def interrupted(self):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            responses(recipe, target)
    begun = by_id(read_responses(recipe.data.responses))
    assert 0 < len(begun) < len(whole)
    assert by_id(responses(recipe, target)) == whole


def test_neither_responses_nor_prompts(recipe, target):
    recipe.data.prompts.unlink()
    with pytest.raises(DataError, match=r"no responses at .*, nor prompts at .*"):
        responses(recipe, target)
    assert not recipe.output.exists()


def test_responses_alone_will_do(recipe, target):
    rows = responses(recipe, target)
    recipe.data.prompts.unlink()
    assert responses(recipe, target) == rows


def test_responses_without_a_head_are_taken_with_a_warning(recipe, target, capfd):
    rows = responses(recipe, target)
    path = recipe.data.responses
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    capfd.readouterr()
    assert responses(recipe, target) == rows
    said = capfd.readouterr().err
    assert all(words in said for words in ("does not say how it was made", "tiny-qwen3", "template", "thinking off"))


@pytest.mark.parametrize(
    ("field", "message"), [("head_digest", "another target: tiny-qwen3"), ("template_digest", "another chat template")]
)
def test_responses_of_another_target_or_template_are_refused(recipe, target, field, message):
    responses(recipe, target)
    path = recipe.data.responses
    head, rows = path.read_bytes().split(b"\n", 1)
    given = json.loads(head)
    given["settings"][field] = "0" * 64
    path.write_bytes(json.dumps(given).encode() + b"\n" + rows)
    with pytest.raises(DataError, match=message):
        responses(recipe, target)


def test_answers_to_other_prompts_are_taken_as_they_are(recipe, target, capfd):
    rows = responses(recipe, target)
    prompts = recipe.data.prompts
    prompts.write_text(prompts.read_text() + json.dumps({"id": "p6", "source": "test", "prompt": "Six"}) + "\n")
    capfd.readouterr()
    assert responses(recipe, target) == rows
    assert "answers other prompts than the recipe chooses" in capfd.readouterr().err


def test_whole_under_other_settings_is_said_and_begun_is_refused(recipe, target, capfd):
    """Say the answers were made in bfloat16 by `dspine regenerate`."""
    answer(recipe, selection(recipe).train, tiny_target(dtype=torch.bfloat16))
    path = recipe.data.responses
    rows = read_responses(path)
    capfd.readouterr()
    assert responses(recipe, target) == rows
    assert "dtype: 'bfloat16' → 'float32'" in capfd.readouterr().err
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(DataError, match=r"is not finished, .* dtype: 'bfloat16' → 'float32'\nFinish it"):
        responses(recipe, target)
    assert len(read_responses(path)) == 4


def test_prompts_are_built_once_and_never_over_others(recipe, tmp_path):
    overrides = [f"data.prompts={tmp_path}/deep/made.jsonl", "build.prompts={builder: nano, seed: 3, count: 9}"]
    made = read_recipe(tmp_path / "recipe.yaml", overrides)
    build(made)
    content = made.data.prompts.read_bytes()
    assert [prompt.source for prompt in selection(made).train[:3]] == ["story", "code", "dialogue"]
    assert len(selection(made).train) == 9
    build(made)
    assert made.data.prompts.read_bytes() == content
    with pytest.raises(ConfigError, match=r"other prompts than build\.prompts makes"):
        build(read_recipe(tmp_path / "recipe.yaml", [*overrides, "build.prompts.seed=4"]))
    assert made.data.prompts.read_bytes() == content


def test_a_data_set_is_read_once(recipe, tmp_path):
    (tmp_path / "set.jsonl").write_text("".join(json.dumps({"prompt": f"Ask {i}"}) + "\n" for i in range(5)))
    overrides = [
        f"data.prompts={tmp_path}/made.jsonl",
        f"build.prompts={{builder: dataset, name: {tmp_path}/set.jsonl}}",
    ]
    made = read_recipe(tmp_path / "recipe.yaml", overrides)
    build(made)
    assert {prompt.source for prompt in selection(made).train} == {"set"}
    assert len(selection(made).train) == 5
    (tmp_path / "set.jsonl").unlink()
    build(made)
    assert len(selection(made).train) == 5


def test_the_recipes_drafter_makes_the_answers(recipe, target, monkeypatch):
    seen = []
    monkeypatch.setattr("dspine.train.materials.load_drafter", lambda name, *_, **__: name)
    monkeypatch.setattr("dspine.train.materials.regenerate", lambda *_, drafter, **__: seen.append(drafter))
    answer(changed(recipe, drafter="mine"), [], target)
    answer(changed(recipe, drafter="mine"), [], target, "given")
    answer(recipe, [], target)
    assert seen == ["mine", "given", None]
