"""The objectives of DFlash, Domino and DSpark against slow references: plain loops in float64, from the formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.support.parallel import over
from tests.support.tiny_target import tiny_target
from tests.train.test_objective import double, gradients, rows_from, rows_of
from torch import Tensor

from dspine.config import ObjectiveRecipe
from dspine.drafter.registry import Network
from dspine.errors import ConfigError
from dspine.train.blocks import Blocks, cut_blocks, draw_anchors
from dspine.train.learner import Learner
from dspine.train.objectives.choice import objective_facts
from dspine.train.objectives.dflash import DFlashObjective, DFlashWeights
from dspine.train.objectives.domino import DominoObjective, DominoWeights
from dspine.train.objectives.dspark import DSparkObjective, DSparkWeights
from dspine.train.objectives.objective import Moment, Objective, Terms
from dspine.train.sequences import SequenceBatch, online_batch

RESTRICTED = torch.arange(0, 320, 2)
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "dflash": ("dflash", {"logits_start": 1}, DFlashWeights(gamma=3.0, chunk=7)),
    "dflash, next-token rows": ("dflash", {"logits_start": 0, "is_causal": True}, DFlashWeights(gamma=3.0)),
    "D-PACE": ("dflash", {}, DFlashWeights(dpace=0.5, chunk=5)),
    "domino": ("domino", {}, DominoWeights(base_share_end_ratio=0.5, chunk=7)),
    "domino, rows predict themselves": ("domino", {"logits_start": 1}, DominoWeights(base_share=0.5)),
    "vanilla": ("dspark", {}, DSparkWeights(chunk=7)),
    "gated": (
        "dspark",
        {"markov_head": "gated", "confidence_with_markov": False},
        DSparkWeights(confidence_weight=0.3),
    ),
    "rnn": ("dspark", {"markov_head": "rnn", "confidence": False}, DSparkWeights(ce_weight=0.5, l1_weight=0.2)),
}
MOMENT = Moment(step=3, epoch=0, learning_rate=0.0, progress=0.3)


def objective_of(drafter: Network, weights: Any) -> Objective:
    made = {DFlashWeights: DFlashObjective, DominoWeights: DominoObjective, DSparkWeights: DSparkObjective}
    return made[type(weights)](drafter, weights, precision=torch.float64)


def setting(case: str, ids: Tensor | None, responses=(9, 5)) -> tuple[Network, Objective, SequenceBatch]:
    kind, sizes, weights = CASES[case]
    target = tiny_target(num_hidden_layers=4)
    drafter = over(target, kind, draft_ids=ids, **{"block_size": 4, **sizes}).double().requires_grad_(True)
    batch = double(online_batch(target, rows_of(target, responses), drafter.target_layer_ids))
    return drafter, objective_of(drafter, weights), batch


def cut(batch: SequenceBatch, drafter: Network) -> Blocks:
    drawn = [
        draw_anchors(mask[:length], 3, seed=0, epoch=0, sample=name)
        for mask, length, name in zip(batch.loss_mask, batch.lengths.tolist(), batch.sample_ids, strict=True)
    ]
    return cut_blocks(batch.ids, batch.loss_mask, batch.lengths, drawn, drafter.candidates)


def reference(drafter: Network, weights: Any, batch: SequenceBatch, blocks: Blocks) -> Tensor:
    """The loss of one window, a row at a time. The only shared part is the network."""
    kind = type(weights)
    head = drafter.head.double()
    ids = list(range(len(head))) if drafter.draft_ids is None else drafter.draft_ids.tolist()
    hidden = drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
    corrected = kind is not DFlashWeights
    vectors = drafter.selection.correction(hidden, blocks.predecessors) if corrected else None
    zeta = drafter.selection.confidence_logits(hidden, blocks.predecessors) if kind is DSparkWeights else None
    sums: dict[str, Any] = dict.fromkeys(("ce", "base", "l1", "conf", "dpace"), 0.0)
    counted, weighed, valid = 0.0, 0.0, 0
    for n in range(len(batch.ids)):
        for a in range(blocks.anchors.shape[1]):
            if not blocks.valid[n, a]:
                continue
            valid += 1
            losses: list[Tensor] = []  # of the block's places; None where the label cannot be proposed
            for t in range(1, drafter.candidates + 1):
                at = int(blocks.anchors[n, a]) + t
                if at >= int(batch.lengths[n]) or not batch.loss_mask[n, at]:
                    break
                w, label = math.exp(-(t - 1) / weights.gamma), int(batch.ids[n, at])
                base = head[ids] @ hidden[n, a, t - 1]
                scores = base + drafter.selection.correction_head @ vectors[n, a, t - 1] if corrected else base
                q = scores.softmax(0)
                ce = None
                if label in ids:
                    ce = -q[ids.index(label)].log()
                    sums["ce"] += w * ce
                    sums["base"] -= w * base.softmax(0)[ids.index(label)].log()
                    counted += w
                losses.append(ce)
                p = ((head @ batch.hidden[n, at - 1]) - batch.lse[n, at - 1]).exp()
                l1 = (q - p[ids]).abs().sum() + (1 - p[ids].sum() if drafter.draft_ids is not None else 0.0)
                sums["l1"] += w * l1
                weighed += w
                if zeta is not None:
                    c, goal = zeta[n, a, t - 1].sigmoid(), (1 - l1.detach() / 2).clamp(0, 1)
                    sums["conf"] -= w * (goal * c.log() + (1 - goal) * (1 - c).log())
            if kind is DFlashWeights and weights.dpace is not None:
                alpha, reached, chances = weights.dpace, 1.0, []
                for ce in losses:
                    reached *= alpha + (0.0 if ce is None else (1 - alpha) * float(torch.exp(-ce.detach())))
                    chances.append(0.0 if ce is None else reached)
                for t, ce in enumerate(losses):
                    if ce is not None:
                        sums["dpace"] += sum(chances[t:]) * ce
    if kind is DFlashWeights:
        return sums["ce"] / counted if weights.dpace is None else sums["dpace"] / valid
    if kind is DominoWeights:
        share = weights.base_share * max(0.0, 1 - MOMENT.progress / weights.base_share_end_ratio)
        return (1 - share) * sums["ce"] / counted + share * sums["base"] / counted
    confidence = weights.confidence_weight * sums["conf"] / weighed
    return weights.ce_weight * sums["ce"] / counted + weights.l1_weight * sums["l1"] / weighed + confidence


@pytest.mark.parametrize("ids", [None, RESTRICTED], ids=["full", "restricted"])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_the_reference(case, ids) -> None:
    drafter, objective, batch = setting(case, ids)
    blocks = cut(batch, drafter)
    terms = objective.terms(batch, blocks, MOMENT)
    ours = objective.loss(terms, Terms.total([terms]), MOMENT)
    gradient = gradients(drafter, ours)
    slow = reference(drafter, objective.weights, batch, blocks)
    expected = gradients(drafter, slow)
    assert len(terms.sums) == len(objective.names)
    assert ours.item() == pytest.approx(slow.item(), rel=1e-10)
    for name, value in expected.items():
        scale = value.abs().max()
        assert scale > 0, name
        torch.testing.assert_close(gradient[name] / scale, value / scale, rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("case", ["dflash", "D-PACE", "domino", "rnn"])
def test_micro_batches_change_nothing(case) -> None:
    """Samples with 9, 30 and (behind the first token) 0 labels: one window, cut in three ways."""
    drafter, objective, batch = setting(case, RESTRICTED, (9, 30, 1))
    learner = Learner(drafter, objective, clip=1e9, anchors_per_sample=6, precision=torch.float64, seed=3)
    results = []
    for parts in ([[0, 1, 2]], [[0], [1], [2]], [[2, 1], [0]]):
        drafter.zero_grad()
        report = learner.gradients([rows_from(batch, part) for part in parts], MOMENT)
        results.append((report, {name: p.grad.clone() for name, p in drafter.named_parameters()}))
    (first, gradient), *others = results
    assert first.tokens > 0
    for report, other in others:
        assert (report.blocks, report.tokens) == (first.blocks, first.tokens)
        assert report.loss == pytest.approx(first.loss, rel=1e-10)
        assert report.means == pytest.approx(first.means, rel=1e-10)
        for name, value in gradient.items():
            scale = value.abs().max()
            torch.testing.assert_close(other[name] / scale, value / scale, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("case", ["D-PACE", "domino", "vanilla"])
def test_nothing_supervised_gives_zero_and_no_gradient(case) -> None:
    drafter, objective, batch = setting(case, None)
    blocks = cut(batch, drafter)
    blocks.supervised.zero_()
    terms = objective.terms(batch, blocks, MOMENT)
    loss = objective.loss(terms, Terms.total([terms]), MOMENT)
    assert loss == 0
    assert all((g == 0).all() for g in gradients(drafter, loss).values())


def test_dominos_head_waits_until_the_backbones_share_falls() -> None:
    drafter, objective, batch = setting("domino", None)
    blocks = cut(batch, drafter)
    start = Moment(step=0, epoch=0, learning_rate=0.0, progress=0.0)
    terms = objective.terms(batch, blocks, start)
    found = gradients(drafter, objective.loss(terms, Terms.total([terms]), start))
    silent = {name for name, g in found.items() if (g == 0).all()}
    assert silent == {name for name in found if name.startswith("selection.")}
    weights = DominoWeights(base_share=0.8, base_share_end_ratio=0.5)
    assert [weights.share(x) for x in (0.0, 0.25, 0.5, 0.9)] == pytest.approx([0.8, 0.4, 0.0, 0.0])
    assert objective.schedule(start) == {"base_share": 1.0}


def test_half_precision_products_are_close() -> None:
    """The losses and gradients of a float32 drafter under bfloat16, head and correction included."""
    drafter, objective, batch = setting("vanilla", None)
    exact = gradients(drafter, objective.loss(t := objective.terms(batch, b := cut(batch, drafter), MOMENT), t, MOMENT))
    drafter = drafter.float()
    halved = DSparkObjective(drafter, objective.weights, precision=torch.bfloat16)
    single = {name: getattr(batch, name).float() for name in ("features", "hidden", "lse")}
    terms = halved.terms(type(batch)(**{**vars(batch), **single}), b, MOMENT)
    assert halved.vocabulary.fast is not None
    found = gradients(drafter, halved.loss(terms, terms, MOMENT))
    for name, value in exact.items():
        error = (found[name].double() - value).norm() / value.norm()
        assert error < 0.05, name


def test_weights_of_another_objective_are_refused() -> None:
    assert objective_facts("dflash", ObjectiveRecipe(gamma=4.0)) == {"gamma": 4.0}
    assert objective_facts("dspark", ObjectiveRecipe())["gamma"] == 4.0
    own = ObjectiveRecipe().model_dump(exclude={"chunk"}, exclude_none=True)
    assert objective_facts("dspine", ObjectiveRecipe()) == own
    for kind, field in (
        ("dflash", "ce_weight"),
        ("domino", "dpace"),
        ("dspine", "l1_weight"),
        ("dspark", "base_share"),
    ):
        with pytest.raises(ConfigError, match=f"has no {field}"):
            objective_facts(kind, ObjectiveRecipe(**{field: 0.5}))
