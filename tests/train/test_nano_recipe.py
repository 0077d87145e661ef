"""recipes/nano.yaml, the prompts that it names, and how a nano drafter's tau is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspine.checkpoint import read_config
from dspine.config import read_recipe
from dspine.train.nano.__main__ import main
from dspine.train.nano.acceptance import interval
from dspine.train.nano.corpus import prompts
from dspine.train.prompts import read_prompts, select

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "nano.yaml"
PROMPTS = ROOT / "recipes" / "nano-prompts.jsonl"


def test_the_committed_prompts_are_what_the_generator_writes(tmp_path):
    assert main(["prompts", str(tmp_path / "prompts.jsonl"), "--count", "2100", "--seed", "1"]) == 0
    assert (tmp_path / "prompts.jsonl").read_bytes() == PROMPTS.read_bytes()


def test_the_recipe_chooses_from_them_and_never_what_evaluation_asks():
    recipe = read_recipe(RECIPE)
    mix = [(entry.source, entry.count, entry.suffix) for entry in recipe.data.mix]
    chosen = select(read_prompts(PROMPTS), mix, recipe.data.seed, recipe.data.held_out)
    assert len(chosen.train) == 2040
    assert len(chosen.held_out) == recipe.evaluate.prompts == 36
    evaluated = {row["messages"][0]["content"] for row in prompts(21, 180)}
    assert not evaluated & {prompt.messages[0]["content"] for prompt in (*chosen.train, *chosen.held_out)}


def test_the_committed_drafter_is_what_the_recipe_makes():
    recipe, config = read_recipe(RECIPE), read_config("nano")
    sizes = {name: getattr(config.drafter, name) for name in recipe.drafter.sizes()}
    assert sizes == recipe.drafter.sizes()
    assert config.drafter.mask_token_id == 3
    asked = recipe.training.model_dump(mode="json")
    shared = asked.keys() & config.training.keys()
    assert {"steps", "learning_rate", "window_samples", "anchors_per_sample", "seed"} <= shared
    assert {name: config.training[name] for name in shared} == {name: asked[name] for name in shared}


def test_the_interval_is_the_one_of_the_normal_law_where_that_is_known():
    """100 prompts of one round, half of them 1 and half 3 tokens: mean 2, standard error 0.1."""
    low, high = interval([(1, 1), (3, 1)] * 50, 0)
    assert (low, high) == (pytest.approx(2 - 0.196, abs=0.04), pytest.approx(2 + 0.196, abs=0.04))
    assert interval([(12, 4)] * 9, 0) == (3, 3)


def test_a_missing_drafter_is_an_error_without_a_traceback(capsys):
    assert main(["tau", "no/such/folder"]) == 1
    assert "no such folder" in capsys.readouterr().err
