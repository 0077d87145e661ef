"""The recipes for GPUs name the paper's numbers, and sizes that fit their targets."""

from __future__ import annotations

from math import ceil

import pytest
from tests.support.tiny_target import EOS, MASK, tiny_target

from dspine.config import read_recipe
from dspine.drafter.config import DSpineConfig
from dspine.drafter.registry import KINDS
from dspine.errors import CheckpointError
from dspine.facts import TargetFacts
from dspine.train.objectives.choice import objective_facts
from dspine.train.prepare import mask_id

QWEN3_8B = TargetFacts(4096, 12288, 36, 32, 8, 128, 151936, 1e-6, 1e6, 40960)
QWEN3_4B = TargetFacts(2560, 9728, 36, 32, 8, 128, 151936, 1e-6, 1e6, 40960)
NANO = TargetFacts(128, 384, 6, 4, 2, 32, 2048, 1e-6, 1e4, 1024)
SMOLLM2 = TargetFacts(576, 1536, 30, 9, 3, 64, 49152, 1e-5, 1e5, 8192)


def sizes(name, facts, mask):
    return DSpineConfig.for_target(facts, mask, **read_recipe(name).drafter.sizes())


def test_qwen3_8b_is_the_papers_drafter():
    recipe = read_recipe("qwen3-8b")
    assert recipe.drafter.mask_token == 151669
    assert sizes("qwen3-8b", QWEN3_8B, 151669) == DSpineConfig()


@pytest.mark.parametrize(("name", "facts", "mask"), [("qwen3-4b", QWEN3_4B, 151669), ("smollm2-135m-gpu", SMOLLM2, 16)])
def test_the_others_have_its_proportions(name, facts, mask):
    config = sizes(name, facts, mask)
    assert config == DSpineConfig.for_target(facts, mask)
    assert (config.num_hidden_layers, config.block_size, config.top_k) == (5, 16, 16)


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-4b", "qwen3.8-27b", "smollm2-135m-gpu"])
def test_the_run_is_the_papers(name):
    recipe = read_recipe(name)
    setup, goal = recipe.training, recipe.objective
    assert (setup.epochs, setup.window_samples, setup.anchors_per_sample) == (6, 112, 512)
    assert (setup.learning_rate, setup.warmup_ratio, setup.clip) == (6e-4, 0.04, 1.0)
    assert (goal.ce_weight, goal.gamma, goal.alignment_weight, goal.candidate_mass_threshold) == (0.1, 7.0, 0.5, 1e-4)
    assert (goal.replacement_probability, goal.replacement_hold_ratio, goal.replacement_end_ratio) == (
        0.5,
        1 / 6,
        1 / 3,
    )
    [mix] = recipe.data.mix
    assert abs(6 * ceil(mix.count / 112) - 3655) < 6
    assert recipe.features.mode == "online"
    assert recipe.data.sampling.temperature == 0


def test_qwen_is_answered_by_a_server_and_smollm2_by_the_drafted_engine():
    assert read_recipe("qwen3-8b").data.server.model == "Qwen/Qwen3-8B"
    assert read_recipe("qwen3-4b").data.server.model == "Qwen/Qwen3-4B"
    assert read_recipe("qwen3-8b").training.max_length == 3072
    assert read_recipe("smollm2-135m-gpu").data.drafter == "smollm2-135m-dspine"


def test_the_hybrid_target_is_tapped_at_layers_of_either_kind():
    drafter = read_recipe("qwen3.8-27b").drafter
    attends = [tap % 4 == 3 for tap in drafter.target_layer_ids]  # every fourth layer does
    assert set(attends) == {True, False}
    assert drafter.block_size == 16
    assert read_recipe("qwen3.8-27b", ["drafter.block_size=8"]).drafter.block_size == 8


@pytest.mark.parametrize(("name", "facts"), [("nano-lab", NANO), ("smollm2-lab", SMOLLM2)])
def test_all_drafters_of_a_lab_propose_as_many_candidates(name, facts):
    base = read_recipe(name)
    kinds = set()
    for settings in ([], *base.ablation.values()):
        recipe = read_recipe(name, settings)
        drafter = recipe.drafter
        kinds.add(drafter.kind)
        objective_facts(drafter.kind, recipe.objective)
        assert KINDS[drafter.kind].config.for_target(facts, 0, **drafter.sizes()).candidates == 7
    assert kinds == set(KINDS)


def test_smollm2s_lab_takes_what_its_drafters_training_left():
    lab, run = read_recipe("smollm2-lab"), read_recipe("smollm2-135m-cpu")
    assert lab.data.responses == run.data.responses
    assert lab.features.folder == run.output / "features"
    assert lab.drafter.target_layer_ids == run.drafter.target_layer_ids
    for settings in (
        lambda r: (r.target, r.dtype, r.training.max_length),
        lambda r: (r.data.seed, r.data.max_new_tokens),
    ):
        assert settings(lab) == settings(run)
    asked = {entry.source: entry for entry in run.data.mix}
    for entry in lab.data.mix:  # what is held out lies behind all that was trained on
        assert entry.count >= asked[entry.source].count
        assert entry.suffix == asked[entry.source].suffix


def test_the_mask_may_be_a_row_beyond_the_tokenizer():
    target = tiny_target()
    assert mask_id(target, 300) == 300
    assert mask_id(target, "<|mask|>") == MASK
    with pytest.raises(CheckpointError, match="has no row in the target's embedding"):
        mask_id(target, 320)
    with pytest.raises(CheckpointError, match="eos"):
        mask_id(target, EOS)


def test_every_value_of_the_sweep_is_a_drafter_of_nano_by_one_number():
    base = read_recipe("nano-sweep")
    for name, settings in base.ablation.items():
        other = read_recipe("nano-sweep", settings)
        assert len(settings) == 1, name
        assert other.model_dump(exclude={"ablation"}) != base.model_dump(exclude={"ablation"}), name
        DSpineConfig.for_target(NANO, 0, **other.drafter.sizes())
