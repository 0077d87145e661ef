"""recipes/nano.yaml, the prompts that it names, and how a nano drafter's tau is measured."""

from __future__ import annotations

import hashlib

from dspine.checkpoint import read_config
from dspine.config import NanoTargetRecipe, read_recipe
from dspine.train.materials import build, selection
from dspine.train.nano.__main__ import main
from dspine.train.nano.corpus import prompt_lines, prompts

RECIPE = "nano"
PROMPTS = "b0b0430829c5a9b693a92a672e3b07cc547cdac877f5f53c5631ee72e07cd62e"  # what the shipped drafter was asked


def test_the_prompts_are_those_of_the_shipped_drafter(tmp_path):
    built = read_recipe(RECIPE).build.prompts
    assert hashlib.sha256(prompt_lines(built.seed, built.count, held=False)).hexdigest() == PROMPTS
    assert main(["prompts", str(tmp_path / "prompts.jsonl"), "--count", "2100", "--seed", "1"]) == 0
    assert hashlib.sha256((tmp_path / "prompts.jsonl").read_bytes()).hexdigest() == PROMPTS


def test_the_recipe_chooses_from_them_and_never_what_evaluation_asks(tmp_path):
    recipe = read_recipe(RECIPE, [f"output={tmp_path}", "build.target=null", "target=nano"])
    build(recipe)
    chosen = selection(recipe)
    assert len(chosen.train) == 2040
    assert len(chosen.held_out) == recipe.evaluate.prompts == 36
    evaluated = {row["messages"][0]["content"] for row in prompts(21, 180)}
    assert not evaluated & {prompt.messages[0]["content"] for prompt in (*chosen.train, *chosen.held_out)}


def test_the_committed_drafter_is_what_the_recipe_makes():
    recipe, config = read_recipe(RECIPE), read_config("nano")
    assert recipe.build.target == NanoTargetRecipe(builder="nano")
    sizes = {name: getattr(config.drafter, name) for name in recipe.drafter.sizes()}
    assert sizes == recipe.drafter.sizes()
    assert config.drafter.mask_token_id == 3
    asked = recipe.training.model_dump(mode="json")
    shared = asked.keys() & config.training.keys()
    assert {"steps", "learning_rate", "window_samples", "anchors_per_sample", "seed"} <= shared
    assert {name: config.training[name] for name in shared} == {name: asked[name] for name in shared}


def test_a_missing_drafter_is_an_error_without_a_traceback(capsys):
    assert main(["tau", "no/such/folder"]) == 1
    assert "no such folder" in capsys.readouterr().err
