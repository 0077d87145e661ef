"""Generation and the training forward at the same anchors: alike for every kind, apart where a fault is planted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.support.tiny_target import MASK, tiny_target
from tests.train.test_together import SIZES

from dspine.config import Recipe
from dspine.decode.agreement import Agreement
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.registry import KINDS
from dspine.train import agreement
from dspine.train.learner import Learner, Moment
from dspine.train.measure import measure_tau
from dspine.train.objectives.choice import objective_for
from dspine.train.responses import ResponseRow
from dspine.train.sequences import online_batch

NEW, STEPS = 14, 30


@cache
def asked():
    """A target, prompts of several lengths, and its greedy answers."""
    target = tiny_target(initializer_range=0.8)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 250, (3 + i % 4,), generator=generator).tolist() for i in range(16)]
    params = SamplingParams(temperature=0.0, max_new_tokens=NEW, ignore_eos=True)
    answers = Engine(target, max_batch=16).generate(prompts, params)
    rows = [
        ResponseRow(str(i), "", [], p, list(a.token_ids), "")
        for i, (p, a) in enumerate(zip(prompts, answers, strict=True))
    ]
    return target, prompts, rows


def half_learned(kind, **sizes):
    """A drafter that is right often, and wrong often, with its objective."""
    target, prompts, rows = asked()
    sizes = {"target_layer_ids": (1, 3), "block_size": 4, **SIZES[kind], **sizes}
    config = KINDS[kind].config.for_target(target.facts, MASK, **sizes)
    torch.manual_seed(0)
    drafter = KINDS[kind].build(config, target.embedding, target.head_weight, None)
    content = {"target": "tiny", "output": "none", "data": {"prompts": "none"}, "training": {"steps": 1}}
    recipe = Recipe.model_validate(content | {"drafter": {"kind": kind, "mask_token": "none"}})
    goal = objective_for(drafter, recipe, torch.float32)
    learner = Learner(drafter, goal, clip=1.0, anchors_per_sample=8, precision=torch.float32, seed=0)
    batch = online_batch(target, rows[:10], drafter.target_layer_ids)  # of the other prompts it knows nothing
    for step in range(STEPS):
        learner.step([batch], Moment(step, step, 1e-2 * (1 - step / STEPS), 0.3, progress=step / STEPS))
    return target, drafter, goal, prompts


@pytest.mark.parametrize("kind", KINDS)
def test_both_paths_agree_place_by_place(kind):
    target, drafter, goal, prompts = half_learned(kind)
    found = measure_tau(target, drafter, prompts, max_new_tokens=NEW, objective=goal).first_place
    assert found.rounds > 30
    assert 0.1 < found.generated < 0.98
    assert found.teacher_forced == pytest.approx(found.generated, abs=1e-6)
    assert not found.doubtful


def test_a_training_forward_that_sees_other_features_is_doubtful(monkeypatch):
    target, drafter, goal, prompts = half_learned("dspine")

    def shifted(*arguments):
        batch = online_batch(*arguments)
        return replace(batch, features=batch.features.roll(1, dims=1))

    monkeypatch.setattr(agreement, "online_batch", shifted)
    found = measure_tau(target, drafter, prompts, max_new_tokens=NEW, objective=goal).first_place
    assert found.doubtful
    assert found.teacher_forced < found.generated


def test_two_points_apart_are_doubtful():
    assert Agreement(0.52, 0.549, 100).doubtful
    assert not Agreement(0.52, 0.539, 100).doubtful
