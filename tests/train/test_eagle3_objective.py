"""The objective of EAGLE-3 against a slow reference: every row of every step, in float64, from the formula."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.parallel import over
from tests.support.tiny_target import tiny_target
from tests.train.test_objective import double, gradients, rows_from, rows_of
from torch import Tensor

from dspine.drafter.eagle3 import Eagle3
from dspine.train.blocks import Blocks
from dspine.train.learner import Learner
from dspine.train.objectives.eagle3 import Eagle3Objective, Eagle3Weights
from dspine.train.objectives.objective import Moment, Terms
from dspine.train.sequences import SequenceBatch, online_batch

RESTRICTED = torch.arange(0, 320, 2)
MOMENT = Moment(step=3, epoch=0, learning_rate=0.0)
NONE = torch.zeros(0, 0, dtype=torch.bool)
NO_BLOCKS = Blocks(NONE.long(), NONE, NONE.long(), NONE)


def setting(
    ids: Tensor | None, responses=(9, 5), precision: torch.dtype = torch.float64, **sizes
) -> tuple[Eagle3, Eagle3Objective, SequenceBatch]:
    target = tiny_target(num_hidden_layers=4)
    given = {"block_size": 4, "target_layer_ids": (0, 1, 2), **sizes}
    drafter = over(target, "eagle3", draft_ids=ids, **given).double().requires_grad_(True)
    batch = double(online_batch(target, rows_of(target, responses), drafter.target_layer_ids))
    objective = Eagle3Objective(drafter, Eagle3Weights(step_decay=0.7, chunk=7), precision=precision)
    return drafter, objective, batch


def reference(drafter: Eagle3, batch: SequenceBatch, decay: float) -> tuple[Tensor, list[float]]:
    """The loss of one window, a row at a time, and how many rows of each step count."""
    head = drafter.head.double()
    ids = list(range(len(head))) if drafter.draft_ids is None else drafter.draft_ids.tolist()
    own = head[ids] if drafter.lm_head is None else drafter.lm_head.weight
    states = drafter.unroll(batch.features, batch.ids)
    loss, counts = 0.0, [0.0] * drafter.candidates
    for n, length in enumerate(batch.lengths.tolist()):
        for step in range(drafter.candidates):
            for i in range(length):
                if i + 2 + step >= length:
                    continue  # drafts a token beyond the sequence
                if not (batch.loss_mask[n, i + step] and batch.loss_mask[n, i + 2 + step]):
                    continue
                logits = head @ batch.hidden[n, i + 1 + step]
                if int(logits.argmax()) not in ids:
                    continue
                p, q = logits[ids].softmax(0), (own @ states[step, n, i]).softmax(0)
                loss = loss + decay**step * -(p * q.log()).sum()
                counts[step] += 1
    return loss / int(batch.lengths.sum()), counts


@pytest.mark.parametrize("ids", [None, RESTRICTED], ids=["full", "restricted"])
@pytest.mark.parametrize("own_head", [True, False])
def test_loss_and_gradients_equal_the_reference(ids: Tensor | None, own_head: bool) -> None:
    drafter, objective, batch = setting(ids, own_head=own_head)
    batch.loss_mask[0, 10] = False  # a gap in what is trained on
    terms = objective.terms(batch, NO_BLOCKS, MOMENT)
    ours = objective.loss(terms, Terms.total([terms]), MOMENT)
    gradient = gradients(drafter, ours)
    slow, counts = reference(drafter, batch, 0.7)
    expected = gradients(drafter, slow)
    assert len(terms.sums) == len(objective.names) == drafter.candidates + 1
    assert terms.denominators.tolist() == [*counts, int(batch.lengths.sum())]
    assert terms.sums[-1] == sum(counts) > 0
    assert ours.item() == pytest.approx(slow.item(), rel=1e-10)
    assert set(expected) == set(gradient)
    for name, value in expected.items():
        scale = value.abs().max()
        assert scale > 0, name
        torch.testing.assert_close(gradient[name] / scale, value / scale, rtol=0, atol=1e-8, msg=name)


def test_rows_of_the_prompt_draft_into_the_response() -> None:
    """A prompt of 6, a response at 6..14: the law at 7 (drafting 8, since 6 is trained on) is the first that counts.

    All three steps learn from it, by rows 6, 5 and 4.
    """
    _, objective, batch = setting(None, responses=(9,))
    terms = objective.terms(batch, NO_BLOCKS, MOMENT)
    assert terms.denominators.tolist() == [7.0, 7.0, 7.0, 15.0]


def test_micro_batches_change_nothing() -> None:
    """Samples with 3, 20 and (behind the first token) 0 labels: one window, cut in three ways."""
    drafter, objective, batch = setting(RESTRICTED, (3, 20, 1))
    learner = Learner(drafter, objective, clip=1e9, anchors_per_sample=6, precision=torch.float64, seed=3)
    results = []
    for parts in ([[0, 1, 2]], [[0], [1], [2]], [[2, 1], [0]]):
        drafter.zero_grad()
        report = learner.gradients([rows_from(batch, part) for part in parts], MOMENT)
        results.append((report, {name: p.grad.clone() for name, p in drafter.named_parameters()}))
    (first, gradient), *others = results
    assert first.loss > 0
    for report, other in others:
        assert report.loss == pytest.approx(first.loss, rel=1e-10)
        assert report.means == pytest.approx(first.means, rel=1e-10)
        for name, value in gradient.items():
            scale = value.abs().max()
            torch.testing.assert_close(other[name] / scale, value / scale, rtol=0, atol=1e-10, msg=name)


def test_nothing_trained_on_gives_zero_and_no_gradient() -> None:
    drafter, objective, batch = setting(None)
    batch.loss_mask.zero_()
    terms = objective.terms(batch, NO_BLOCKS, MOMENT)
    loss = objective.loss(terms, Terms.total([terms]), MOMENT)
    assert loss == 0
    assert all((g == 0).all() for g in gradients(drafter, loss).values())


@pytest.mark.parametrize("own_head", [True, False])
def test_half_precision_products_are_close(own_head: bool) -> None:
    drafter, objective, batch = setting(None, own_head=own_head)
    terms = objective.terms(batch, NO_BLOCKS, MOMENT)
    exact = gradients(drafter, objective.loss(terms, terms, MOMENT))
    drafter = drafter.float()
    halved = Eagle3Objective(drafter, objective.weights, precision=torch.bfloat16)
    single = {name: getattr(batch, name).float() for name in ("features", "hidden", "lse")}
    terms = halved.terms(replace(batch, **single), NO_BLOCKS, MOMENT)
    found = gradients(drafter, halved.loss(terms, terms, MOMENT))
    for name, value in exact.items():
        error = (found[name].double() - value).norm() / value.norm()
        assert 1e-6 < error < 0.05, name
