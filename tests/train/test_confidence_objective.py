"""The confidence head's term: against slow references, and without a trace in the drafter's own gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.drafter.test_confidence import CASES, made
from tests.support.tiny_target import tiny_target
from tests.train.test_baseline_objectives import cut
from tests.train.test_objective import double, gradients, rows_of
from torch import Tensor

from dspine.config import ObjectiveRecipe
from dspine.drafter.registry import Network
from dspine.train.blocks import Blocks
from dspine.train.objectives import row_losses
from dspine.train.objectives.dflash import DFlashObjective, DFlashWeights
from dspine.train.objectives.dflash2 import DFlash2Objective, DFlash2Weights
from dspine.train.objectives.domino import DominoObjective, DominoWeights
from dspine.train.objectives.dspine import DSpineObjective, Weights
from dspine.train.objectives.eagle3 import Eagle3Objective, Eagle3Weights
from dspine.train.objectives.objective import Moment, Objective, Terms
from dspine.train.sequences import SequenceBatch, online_batch, teachers

MOMENT = Moment(step=3, epoch=0, learning_rate=0.0, beta=0.3, progress=0.3)
OPTIONAL = [case for case in CASES if case != "dspark"]  # DSpark's own has its tests with its objective
DECAY = 3.0


def objective_of(drafter: Network, case: str) -> Objective:
    exact: dict[str, Any] = {"precision": torch.float64}
    match case.split(",")[0]:
        case "dspine":
            return DSpineObjective(drafter, Weights(gamma=DECAY, chunk=7), seed=0, **exact)
        case "dflash":
            return DFlashObjective(drafter, DFlashWeights(gamma=DECAY, chunk=7), **exact)
        case "domino":
            return DominoObjective(drafter, DominoWeights(gamma=DECAY, chunk=7), **exact)
        case "dflash2":
            return DFlash2Objective(drafter, DFlash2Weights(gamma=DECAY, chunk=7), **exact)
    return Eagle3Objective(drafter, Eagle3Weights(chunk=11), **exact)


def setting(case: str, **sizes: Any) -> tuple[Network, Objective, SequenceBatch, Blocks]:
    target = tiny_target(num_hidden_layers=4)
    drafter = made(target, case, **sizes).double().requires_grad_(True)
    batch = double(online_batch(target, rows_of(target, (9, 5)), drafter.target_layer_ids))
    return drafter, objective_of(drafter, case), batch, cut(batch, drafter)


def bce(zeta: Tensor, p: Tensor, q: Tensor) -> Tensor:
    goal, c = torch.minimum(p, q).sum().detach(), zeta.sigmoid()
    return -(goal * c.log() + (1 - goal) * (1 - c).log())


def law_at(drafter: Network, case: str, inner: Any, blocks: Blocks, at: tuple[int, ...]) -> Tensor:
    """q over the vocabulary at (n, a, t-1), after the correct predecessor."""
    head = drafter.head.double()
    if case == "dspine, unrefined":
        return (head @ inner.hidden[at]).softmax(0)
    if case == "dspine":
        candidates = (head @ inner.hidden[at]).topk(drafter.config.top_k).indices
        refined = drafter.refine(inner.last[at], blocks.predecessors[at])
        return torch.zeros(len(head)).double().scatter(0, candidates, (head[candidates] @ refined).softmax(0))
    scores = head @ inner[at]
    if case == "domino":
        vectors = drafter.selection.correction(inner, blocks.predecessors)
        return (scores + drafter.selection.correction_head @ vectors[at]).softmax(0)
    if case == "dflash2":
        best, candidates = scores.topk(drafter.selection.top_k)
        before = blocks.predecessors[at][None]
        added = drafter.selection.candidate_selector(inner[at], before, candidates)[0]
        return torch.zeros(len(head)).double().scatter(0, candidates, (best + added).softmax(0))
    return scores.softmax(0)


def zeta_at(drafter: Network, case: str, inner: Any, blocks: Blocks, at: tuple[int, ...]) -> Tensor:
    if case == "dspine, unrefined":
        return drafter.confidence_head(inner.hidden[at])
    if case == "dspine":
        return drafter.confidence_head(drafter.refine(inner.last[at], blocks.predecessors[at]))
    before = drafter.tables.embedding(blocks.predecessors[at]).double()
    before = before / (before.pow(2).mean() + 1e-6).sqrt()
    return drafter.confidence_head(torch.cat((inner[at], before)))


@pytest.mark.parametrize("case", [case for case in OPTIONAL if case != "eagle3"])
def test_it_is_the_cross_entropy_with_the_chance_of_acceptance(case: str) -> None:
    drafter, objective, batch, blocks = setting(case, confidence=True)
    terms = objective.terms(batch, blocks, MOMENT)
    assert objective.names[-1] == "confidence"
    assert len(objective.names) == len(terms.sums)
    inner = drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
    total, weighed = torch.zeros(()).double(), 0.0
    for at in blocks.supervised.nonzero().tolist():
        n, a, t = at
        position = int(blocks.anchors[n, a]) + t
        p = (drafter.head.double() @ batch.hidden[n, position] - batch.lse[n, position]).exp()
        w = math.exp(-t / DECAY)
        q = law_at(drafter, case, inner, blocks, (n, a, t))
        total = total + w * bce(zeta_at(drafter, case, inner, blocks, (n, a, t)), p, q)
        weighed += w
    assert terms.means()[-1].detach().item() == pytest.approx(total.item() / weighed, rel=1e-6)


def test_eagles_is_that_of_every_step() -> None:
    drafter, objective, batch, blocks = setting("eagle3", confidence=True)
    found = objective.terms(batch, blocks, MOMENT).means()[-1]
    states = drafter.unroll(batch.features, batch.ids)
    taught = teachers(batch.loss_mask)
    total, weighed = torch.zeros(()).double(), 0.0
    for n, place in taught.nonzero().tolist():
        if place == 0 or not batch.loss_mask[n, place - 1]:
            continue
        p = (drafter.head.double() @ batch.hidden[n, place] - batch.lse[n, place]).exp()
        for step in range(drafter.candidates):
            if (row := place - 1 - step) >= 0:
                state = states[step, n, row]
                w = 0.8**step
                total = total + w * bce(drafter.confidence_head(state), p, drafter.logits(state).softmax(0))
                weighed += w
    assert found.detach().item() == pytest.approx(total.item() / weighed, rel=1e-6)


@pytest.mark.parametrize("case", OPTIONAL)
def test_the_drafter_learns_nothing_from_it(case: str) -> None:
    without, plain, batch, blocks = setting(case)
    beside, objective, _, _ = setting(case, confidence=True)
    beside.load_state_dict(without.state_dict(), strict=False)
    found = []
    for drafter, goal in ((without, plain), (beside, objective)):
        terms = goal.terms(batch, blocks, MOMENT)
        found.append(gradients(drafter, goal.loss(terms, Terms.total([terms]), MOMENT)))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-9, atol=1e-12, msg=name)
    assert all(bool((found[1][f"confidence_head.proj.{part}"] != 0).any()) for part in ("weight", "bias"))


def test_a_recipe_needs_no_word_more() -> None:
    assert ObjectiveRecipe().given() == {}


@pytest.mark.parametrize("confident", [False, True], ids=["watched", "all"])
@pytest.mark.parametrize("case", [case for case in OPTIONAL if case != "eagle3"])
def test_acceptance_by_place_is_what_the_laws_share(
    case: str, confident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all rows where the target's law is at hand, else of those whose anchors stand at some positions."""
    monkeypatch.setattr(row_losses, "WATCHED", 2)
    drafter, objective, batch, blocks = setting(case, confidence=confident)
    found = objective.terms(batch, blocks, MOMENT)
    inner = drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
    every = confident or case.startswith("dspine")
    shared: list[list[float]] = [[] for _ in range(drafter.candidates)]
    for n, a, t in blocks.supervised.nonzero().tolist():
        anchor = int(blocks.anchors[n, a])
        if every or anchor % 2 == 0:
            p = (drafter.head.double() @ batch.hidden[n, anchor + t] - batch.lse[n, anchor + t]).exp()
            q = law_at(drafter, case, inner, blocks, (n, a, t)).detach()
            shared[t].append(float(torch.minimum(p, q).sum()))
    assert 0 < sum(map(len, shared)) <= int(blocks.supervised.sum())
    expected = [sum(those) / len(those) if those else None for those in shared]
    assert found.by_place()[1] == pytest.approx(expected, abs=1e-6)  # the law's log-sum-exp is kept in float32
    if not every:
        assert sum(map(len, shared)) < int(blocks.supervised.sum())
