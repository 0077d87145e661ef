"""Features made in the training process: the batch, the loss and the gradient of the store, without a disk."""

from __future__ import annotations

import pytest
import torch
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.train.features import write_features
from dspine.train.learner import Learner, Moment
from dspine.train.objectives.dspine import DSpineObjective, Weights
from dspine.train.online import OnlineFeatures
from dspine.train.responses import ResponseRow

MOMENT = Moment(step=0, epoch=0, learning_rate=1e-2, beta=0.5, replacement=0.5)
FIELDS = ("ids", "loss_mask", "lengths", "features", "hidden", "lse")


def row(name, prompt, answer, first=None):
    ids = torch.randint(0, 256, (prompt + answer,), generator=torch.Generator().manual_seed(prompt * answer)).tolist()
    ids[0] = ids[0] if first is None else first
    return ResponseRow(name, "a", [], ids[:prompt], ids[prompt:], "length")


ROWS = [row(f"r{i}", 3 + i, 9 + 4 * i) for i in range(5)]


@pytest.fixture(scope="module")
def target():
    return tiny_target(dtype=torch.float64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_batch_is_that_of_a_store(target, tmp_path, dtype):
    store = write_features(target, ROWS, (1, 4), tmp_path / "s", dtype=dtype, max_length=20, progress=False)
    online = OnlineFeatures(target, ROWS, (1, 4), dtype=dtype, max_length=20)
    assert online.lengths == store.lengths
    for names in (["r3", "r0"], ["r4"], ["r1", "r2", "r0"]):
        kept, made = store.load(names), online.load(names)
        assert made.sample_ids == kept.sample_ids
        for name in FIELDS:
            mine, theirs = getattr(made, name), getattr(kept, name)
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6, msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loss_and_gradient_are_those_of_a_store(target, tmp_path, dtype):
    drafter = tiny_drafter(tiny_target())
    taps = drafter.target_layer_ids
    goal = DSpineObjective(drafter, Weights(), precision=torch.float32, seed=0)
    learner = Learner(drafter, goal, clip=1.0, anchors_per_sample=4, precision=torch.float32, seed=0)
    found = []
    for source in (
        write_features(target, ROWS, taps, tmp_path / "s", dtype=dtype, progress=False),
        OnlineFeatures(target, ROWS, taps, dtype=dtype),
    ):
        drafter.zero_grad()
        report = learner.gradients([source.load(["r0", "r3"]), source.load(["r2"])], MOMENT)
        gradient = torch.cat([p.grad.flatten() for p in drafter.parameters() if p.grad is not None])
        found.append((report.loss, gradient))
    (stored_loss, stored), (online_loss, online) = found
    assert online_loss == pytest.approx(stored_loss, rel=1e-5)
    assert (online - stored).norm() < 1e-4 * stored.norm()


def test_a_broken_sample_trains_nothing_and_is_named_once(capsys):
    broken = tiny_target()
    with torch.no_grad():
        broken.embedding.weight[300] = torch.nan
    bad = row("bad", 4, 12, first=300)
    drafter = tiny_drafter(tiny_target())
    source = OnlineFeatures(broken, [*ROWS, bad], drafter.target_layer_ids)
    goal = DSpineObjective(drafter, Weights(), precision=torch.float32, seed=0)
    learner = Learner(drafter, goal, clip=1.0, anchors_per_sample=4, precision=torch.float32, seed=0)
    batch = source.load(["r0", "bad"])
    assert (batch.sample_ids, batch.skipped) == (("r0", "bad"), ("bad",))
    assert "Sequences skipped: 1 (a number is not finite): bad" in capsys.readouterr().err
    with_it, without = (learner.gradients([source.load(n)], MOMENT) for n in (["r0", "bad"], ["r0"]))
    assert with_it.loss == pytest.approx(without.loss, rel=1e-5)
    assert with_it.blocks == without.blocks
    alone = learner.gradients([source.load(["bad"])], MOMENT)  # a window of nothing else moves nothing, and is no fault
    assert (alone.loss, alone.blocks, alone.bad) == (0.0, 0, ())
    assert capsys.readouterr().err == ""
