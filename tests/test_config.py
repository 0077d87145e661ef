"""Recipes: where the things lie that a run makes, and recipes by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dspine import shipped
from dspine.config import Recipe, find_recipe, read_recipe, shipped_recipes
from dspine.errors import ConfigError

LEAST = {
    "target": "tiny",
    "output": "runs/x",
    "data": {"prompts": "p.jsonl"},
    "drafter": {"mask_token": "<|mask|>"},
    "training": {"steps": 1},
}
NANO = {"target": {"builder": "nano"}, "prompts": {"builder": "nano", "count": 3}}


def read(tmp_path: Path, **changes) -> Recipe:
    content = {key: value for key, value in {**LEAST, **changes}.items() if value is not None}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return read_recipe(tmp_path / "recipe.yaml")


def test_responses_lie_in_the_output_unless_the_recipe_says_otherwise(tmp_path):
    assert read(tmp_path).data.responses == Path("runs/x/responses.jsonl")
    given = read(tmp_path, data={"prompts": "p.jsonl", "responses": "r.jsonl"})
    assert (given.data.responses, given.data.prompts) == (Path("r.jsonl"), Path("p.jsonl"))


def test_what_is_built_lies_in_the_output(tmp_path):
    recipe = read(tmp_path, target=None, data={}, build=NANO)
    assert (recipe.target, recipe.data.prompts) == ("runs/x/target", Path("runs/x/prompts.jsonl"))
    assert recipe.build.target is not None
    assert recipe.build.target.steps == 1000
    assert Recipe.model_validate(recipe.model_dump()) == recipe


def test_a_target_that_is_built_and_named_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"target and build\.target exclude each other"):
        read(tmp_path, build=NANO)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": None}, "'target' is missing"),
        ({"target": None, "build": {"target": None}}, "'target' is missing"),
        ({"data": {}}, r"'data\.prompts' is missing"),
        ({"output": None}, "'output' is missing"),
        ({"output": [1]}, "'output'"),
        ({"data": {"prompts": "p.jsonl", "sampling": {"temperature": -1}}}, r"'data\.sampling\.temperature'"),
        ({"data": {"prompts": "p.jsonl", "sampling": {"top_p": 1.5}}}, r"'data\.sampling\.top_p'"),
        ({"evaluate": {"every_steps": 5}}, r"evaluate\.every_steps needs data\.held_out"),
        ({"data": "all"}, "'data'"),
        ({"build": 3}, "'build'"),
        ({"build": {"drafter": 1}}, r"unknown key 'build\.drafter'"),
        ({"build": {"prompts": {"builder": "mega", "count": 3}}}, r"'build\.prompts\.builder'.*'nano'"),
        ({"build": {"prompts": {"builder": "nano"}}}, r"'build\.prompts\.count' is missing"),
    ],
)
def test_faults_are_named_by_their_place(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("text", "name"),
    [("training: {steps: 1, steps: 2}", "steps"), ("training:\n  steps: 1\ntraining:\n  epochs: 2", "training")],
)
def test_a_key_that_is_there_twice_is_refused(tmp_path, text, name):
    rest = yaml.safe_dump({key: value for key, value in LEAST.items() if key != "training"})
    (tmp_path / "recipe.yaml").write_text(f"{rest}{text}\n")
    with pytest.raises(ConfigError, match=f"the key '{name}' is there twice"):
        read_recipe(tmp_path / "recipe.yaml")


def test_an_override_fills_a_section_that_holds_nothing(tmp_path):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(LEAST | {"evaluate": None}))
    assert read_recipe(tmp_path / "recipe.yaml", ["evaluate.prompts=3"]).evaluate.prompts == 3


def test_shipped_recipes_are_found_by_name(monkeypatch, tmp_path):
    assert {"nano", "smollm2-135m-cpu"} <= set(shipped_recipes())
    assert read_recipe("nano").output == Path("runs/nano")
    assert find_recipe("./nano") == find_recipe(Path("nano")) == Path("nano")
    with pytest.raises(ConfigError, match=r"cannot read the recipe nanoo.*\n.*nano, .*smollm2-135m-cpu"):
        read_recipe("nanoo")
    checkout, wheel = tmp_path / "recipes" / "x.yaml", tmp_path / "src" / "dspine" / "_recipes" / "x.yaml"
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "src" / "dspine")
    assert find_recipe("x") == Path("x")
    for path in (checkout, wheel):
        path.parent.mkdir(parents=True)
        path.touch()
        assert find_recipe("x") == path


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_can_be_read(name):
    setup = read_recipe(name).training
    assert setup.steps or setup.epochs
