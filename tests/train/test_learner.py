"""One optimiser step and its guard."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.train.learner import Learner, Moment, widened
from dspine.train.objectives.dspine import DSpineObjective, Weights
from dspine.train.responses import ResponseRow
from dspine.train.sequences import online_batch

MOMENT = Moment(step=0, epoch=0, learning_rate=1e-2, beta=0.5, replacement=0.5)


def learner_and_batch(clip=1.0):
    target = tiny_target()
    rows = [ResponseRow(f"r{i}", "test", [], [1, 2, 3], list(range(10, 20 + i)), "length") for i in range(2)]
    drafter = tiny_drafter(target)
    goal = DSpineObjective(drafter, Weights(), precision=torch.float32, seed=0)
    learner = Learner(drafter, goal, clip=clip, anchors_per_sample=4, precision=torch.float32, seed=0)
    return learner, online_batch(target, rows, drafter.target_layer_ids)


def test_a_step_moves_every_weight_by_the_learning_rate_at_most():
    learner, batch = learner_and_batch()
    before = {name: p.detach().clone() for name, p in learner.drafter.named_parameters()}
    report = learner.step([batch], MOMENT)
    assert report.bad == ()
    assert report.blocks == 8
    for name, p in learner.drafter.named_parameters():
        moved = (p.detach() - before[name]).abs().max()
        # While the writes are zero, no gradient reaches gate and message: they move from the second step on.
        still = name.startswith("injection") and "writes" not in name and "readouts" not in name
        assert (moved == 0) if still else (0 < moved < 1.01e-2), name


def test_a_gradient_that_is_not_finite_moves_nothing_though_the_loss_is_finite():
    learner, batch = learner_and_batch()
    learner.step([batch], MOMENT)
    before = {name: p.detach().clone() for name, p in learner.drafter.named_parameters()}
    moments = {name: value.clone() for name, value in learner.optimizer.state[_fusion(learner)].items()}
    handle = _fusion(learner).register_hook(lambda gradient: gradient * math.inf)
    report = learner.step([batch], MOMENT)
    handle.remove()
    assert math.isfinite(report.loss)
    assert not math.isfinite(report.gradient_norm)
    assert report.bad == ("r0", "r1"), "every number of the samples is finite, so all are suspects"
    assert all(torch.equal(before[name], p) for name, p in learner.drafter.named_parameters())
    assert all(torch.equal(moments[name], v) for name, v in learner.optimizer.state[_fusion(learner)].items())
    assert learner.step([batch], MOMENT).bad == ()


def test_the_gradient_is_clipped_and_its_norm_reported_before():
    learner, batch = learner_and_batch(clip=0.25)
    report = learner.gradients([batch], MOMENT)
    norm = torch.stack([p.grad.norm() for p in learner.drafter.parameters() if p.grad is not None]).norm()
    assert report.gradient_norm > 0.25
    assert abs(norm.item() - 0.25) < 1e-4


def test_more_padding_changes_nothing():
    learner, batch = learner_and_batch()
    tight = learner.gradients([batch], MOMENT)
    gradient = _fusion(learner).grad.clone()
    learner.optimizer.zero_grad()
    wide = widened(batch, 32)
    assert wide.ids.shape == (2, 32)
    assert wide.lengths.tolist() == batch.lengths.tolist()
    report = learner.gradients([wide], MOMENT)
    assert (report.blocks, report.tokens) == (tight.blocks, tight.tokens)
    assert report.loss == pytest.approx(tight.loss, rel=1e-6)
    torch.testing.assert_close(_fusion(learner).grad, gradient, rtol=1e-4, atol=1e-6)


def _fusion(learner):
    return learner.drafter.backbone.fc.weight
