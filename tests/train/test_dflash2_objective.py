"""The objective of DFlash2 against a slow reference: plain loops in float64, from the formula."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.parallel import over
from tests.support.tiny_target import tiny_target
from tests.train.test_baseline_objectives import MOMENT, RESTRICTED, cut
from tests.train.test_objective import double, gradients, rows_from, rows_of
from torch import Tensor

from dspine.drafter.parallel import ParallelDrafter
from dspine.train.blocks import Blocks
from dspine.train.learner import Learner
from dspine.train.objectives.dflash2 import DFlash2Objective, DFlash2Weights
from dspine.train.objectives.objective import Terms
from dspine.train.sequences import SequenceBatch, online_batch

WEIGHTS = DFlash2Weights(gamma=3.0, selector_weight=0.6, chunk=7)


def setting(ids: Tensor | None, responses=(9, 5)) -> tuple[ParallelDrafter, DFlash2Objective, SequenceBatch]:
    target = tiny_target(num_hidden_layers=4)
    drafter = over(target, "dflash2", draft_ids=ids, block_size=4, top_k=70).double().requires_grad_(True)
    batch = double(online_batch(target, rows_of(target, responses), drafter.target_layer_ids))
    return drafter, DFlash2Objective(drafter, WEIGHTS, precision=torch.float64), batch


def reference(drafter: ParallelDrafter, batch: SequenceBatch, blocks: Blocks) -> tuple[Tensor, float]:
    """The loss of one window, a row at a time, and the weighted share of labels among the candidates."""
    head, selector = drafter.head.double(), drafter.selection.candidate_selector
    ids = list(range(len(head))) if drafter.draft_ids is None else drafter.draft_ids.tolist()
    hidden = drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
    ce = chosen = 0.0
    counted = reached = weighed = 0.0
    for n, a in blocks.valid.nonzero().tolist():
        for t in range(1, drafter.candidates + 1):
            at = int(blocks.anchors[n, a]) + t
            if at >= int(batch.lengths[n]) or not batch.loss_mask[n, at]:
                break
            w, label, state = math.exp(-(t - 1) / 3.0), int(batch.ids[n, at]), hidden[n, a, t - 1]
            scores = head[ids] @ state
            weighed += w
            if label in ids:
                ce -= w * scores.log_softmax(0)[ids.index(label)]
                counted += w
            best = scores.detach().argsort(descending=True)[:70].tolist()
            candidates = [ids[i] for i in best]
            if label not in candidates:
                continue
            left = selector.predecessor_codebook[batch.ids[n, at - 1]] * (selector.hidden_projection.weight @ state)
            among = torch.stack([scores[i] + left @ selector.successor_codebook[ids[i]] for i in best])
            chosen -= w * among.log_softmax(0)[candidates.index(label)]
            reached += w
    return ce / counted + 0.6 * chosen / reached, reached / weighed


@pytest.mark.parametrize("ids", [None, RESTRICTED], ids=["full", "restricted"])
def test_loss_and_gradients_equal_the_reference(ids: Tensor | None) -> None:
    drafter, objective, batch = setting(ids)
    blocks = cut(batch, drafter)
    terms = objective.terms(batch, blocks, MOMENT)
    ours = objective.loss(terms, Terms.total([terms]), MOMENT)
    gradient = gradients(drafter, ours)
    slow, recall = reference(drafter, batch, blocks)
    expected = gradients(drafter, slow)
    assert ours.item() == pytest.approx(slow.item(), rel=1e-10)
    assert dict(zip(objective.names, terms.means().tolist(), strict=True))["recall"] == pytest.approx(recall)
    assert 0 < recall < 1
    for name, value in expected.items():
        scale = value.abs().max()
        assert scale > 0, name
        torch.testing.assert_close(gradient[name] / scale, value / scale, rtol=0, atol=1e-8, msg=name)


def test_micro_batches_change_nothing() -> None:
    drafter, objective, batch = setting(RESTRICTED, (3, 30, 1))
    learner = Learner(drafter, objective, clip=1e9, anchors_per_sample=6, precision=torch.float64, seed=3)
    results = []
    for parts in ([[0, 1, 2]], [[0], [1], [2]]):
        drafter.zero_grad()
        report = learner.gradients([rows_from(batch, part) for part in parts], MOMENT)
        results.append((report, {name: p.grad.clone() for name, p in drafter.named_parameters()}))
    (first, gradient), (other, divided) = results
    assert other.loss == pytest.approx(first.loss, rel=1e-10)
    assert other.means == pytest.approx(first.means, rel=1e-10)
    for name, value in gradient.items():
        scale = value.abs().max()
        torch.testing.assert_close(divided[name] / scale, value / scale, rtol=0, atol=1e-10, msg=name)


def test_nothing_supervised_gives_zero_and_no_gradient() -> None:
    drafter, objective, batch = setting(None)
    blocks = cut(batch, drafter)
    blocks.supervised.zero_()
    terms = objective.terms(batch, blocks, MOMENT)
    loss = objective.loss(terms, Terms.total([terms]), MOMENT)
    assert loss == 0
    assert all((g == 0).all() for g in gradients(drafter, loss).values())
