"""The switches of training, and a run with each: what it changes, what it refuses, and that the drafter loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.support.tiny_target import tiny_target
from tests.train.test_objective import Setting, gradients, setting
from tests.train.test_trainer import prepared, recipe, steps_of  # noqa: F401  recipe is a fixture

from dspine.checkpoint import load_drafter
from dspine.config import ObjectiveRecipe, read_recipe
from dspine.drafter import DSpineConfig, TransferSpace
from dspine.drafter.config import SWITCHES
from dspine.errors import ConfigError
from dspine.train.curriculum import replacement_layers
from dspine.train.objectives.dspine import Terms, window_loss
from dspine.train.trainer import Trainer, train

NEVER = "objective.replacement=never"
RUNS = {
    "no injection": ["drafter.injected_layers=[]", "drafter.refined=false", NEVER],
    "first layer": ["drafter.injected_layers=[0]", "drafter.refined=false"],
    "no refinement": ["drafter.refined=false"],
    "no gate": ["drafter.gated=false"],
    "tokens alone": ["drafter.predecessor=none", NEVER],
    "correct predecessors": ["objective.replacement=always"],
    "reach 2": ["drafter.reach=2"],
    "both ways": ["drafter.is_causal=false", NEVER],
    "no alignment": ["objective.alignment=none"],
    "alignment to tokens": ["objective.alignment=token"],
    "no whitening": ["drafter.whitening=false"],
    "random readouts": ["drafter.readout_init=random"],
    "whitened readouts": ["drafter.readout_init=whitened"],
}


@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS.keys())
def test_a_run_learns_and_its_drafter_loads(recipe: Path, tmp_path: Path, overrides: list[str]) -> None:  # noqa: F811
    summary = train(recipe, [*overrides, "training.steps=10", "training.save_steps=50"])
    lines = steps_of(tmp_path)
    assert lines[-1]["ce"] < lines[0]["ce"]
    assert summary.drafter is not None
    drafter = load_drafter(summary.drafter, tiny_target())
    asked = read_recipe(recipe, overrides)
    assert drafter.config.switched == {k: v for k, v in asked.drafter.sizes().items() if k in SWITCHES}
    facts = json.loads((summary.drafter / "config.json").read_text())["dspine_format"]["training"]
    assert asked.drafter.beginnings().items() <= facts.items()
    assert (facts["alignment"], facts["replacement"]) == (asked.objective.alignment, asked.objective.replacement)
    assert facts["replacement_layers"] == {"curriculum": 1, "never": 0, "always": 2}[asked.objective.replacement]


def test_a_run_is_not_gone_on_with_under_other_switches(recipe: Path) -> None:  # noqa: F811
    same = prepared(recipe).identity
    for overrides in RUNS.values():
        assert prepared(recipe, *overrides).identity != same


def loss_of(s: Setting, alignment: str, beta: float) -> torch.Tensor:
    terms = s.terms(s.states(), alignment=alignment)
    return window_loss(terms, Terms.total([terms]), alpha=0.1, beta=beta, alignment=alignment)


def test_alignment_to_the_token_is_the_cross_entropy_of_earlier_layers() -> None:
    s = setting(tuple(range(0, 320, 2)))
    states = s.states()
    total, weight = torch.zeros(()), 0.0
    ids, head = s.drafter.draft_ids.tolist(), s.drafter.head.double()[s.drafter.draft_ids]
    for n, a, i in s.blocks.supervised.nonzero().tolist():
        label = int(s.blocks.labels[n, a, i])
        if label in ids:
            w = torch.exp(torch.tensor(-i / 7.0, dtype=torch.float64))
            scores = head @ s.drafter.backbone.norm(states.heard[0][n, a, i])  # two layers: the first alone
            total, weight = total - w * scores.log_softmax(-1)[ids.index(label)], weight + w
    added = loss_of(s, "token", 0.4) - loss_of(s, "token", 0.0)
    torch.testing.assert_close(added, 0.4 * total / weight, rtol=1e-9, atol=0)


def test_no_alignment_leaves_the_layers_alone() -> None:
    s = setting()
    with_none, without = (gradients(s.drafter, loss_of(s, "none", beta)) for beta in (0.0, 0.0))
    aligned = gradients(s.drafter, loss_of(s, "cosine", 0.4))
    assert ObjectiveRecipe(alignment="none").settled().alignment_weight == 0
    assert all(torch.equal(with_none[name], without[name]) for name in aligned)
    assert any(not torch.equal(with_none[name], aligned[name]) for name in aligned)


def test_what_is_not_refined_has_no_refined_terms() -> None:
    s = setting(refined=False)
    terms = s.terms(s.states())
    assert terms.sums[2:4].tolist() == terms.denominators[2:4].tolist() == [0, 0]
    full = setting()
    ours, theirs = terms.means(), full.terms(full.states()).means()
    assert torch.equal(ours[[0, 1, 4]], theirs[[0, 1, 4]])


def test_when_correct_predecessors_are_heard(recipe: Path) -> None:  # noqa: F811
    def drawn(*overrides: str) -> list[tuple[float, int]]:
        trainer = Trainer(prepared(recipe, *overrides), resume=False)
        objective = trainer.learner.objective
        return [(trainer.moment(step).replacement, objective.replaced_layers) for step in (0, 5, 19)]

    assert drawn() == [(0.5, 1), (pytest.approx(0.25), 1), (0.0, 1)]
    assert drawn(NEVER) == [(0.0, 0)] * 3
    assert drawn("objective.replacement=always") == [(1.0, 2)] * 3
    assert drawn("objective.replacement=always", "objective.replacement_layers=1") == [(1.0, 1)] * 3


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["drafter.is_causal=false"], "would reach the place that is to predict it"),
        (["drafter.predecessor=none"], "none of the first 1 layers hears predecessors"),
        (["drafter.injected_layers=[1]"], "none of the first 1 layers hears predecessors"),
        (["objective.replacement_layers=3"], "replacement_layers is 3, of 2"),
        ([NEVER, "objective.replacement_layers=1"], "replacement_layers would change nothing"),
        ([NEVER, "objective.replacement_probability=0.2"], "replacement_probability would change nothing"),
        (["objective.alignment=none", "objective.alignment_weight=0.2"], "alignment_weight would change nothing"),
        (["drafter.whitening=false", "drafter.readout_init=whitened"], "the same as directions"),
    ],
)
def test_what_would_change_nothing_or_leak_is_refused(recipe: Path, overrides: list[str], said: str) -> None:  # noqa: F811
    with pytest.raises(ConfigError) as caught:
        Trainer(prepared(recipe, *overrides), resume=False)
    assert said in str(caught.value)


def test_a_space_that_is_not_whitened(recipe: Path) -> None:  # noqa: F811
    head = tiny_target().head_weight
    ours, plain = TransferSpace.fit(head, 16), TransferSpace.fit(head, 16, whitening=False)
    torch.testing.assert_close(ours.directions.abs(), plain.basis.abs(), atol=1e-5, rtol=0)
    torch.testing.assert_close(plain.basis @ plain.basis.T, torch.eye(16), atol=1e-5, rtol=0)
    spread, even = plain.codes.var(dim=0), ours.codes.var(dim=0)
    assert spread[0] / spread[-1] > 1.4, "directions count as much as rows vary along them"
    assert even[0] / even[-1] < 1.1
    drafter = prepared(recipe, "drafter.whitening=false").drafter
    assert torch.equal(drafter.space.codes, plain.codes)
    for readout in drafter.injection.readouts:
        torch.testing.assert_close(readout.weight, plain.directions)


def test_what_readouts_start_from(recipe: Path) -> None:  # noqa: F811
    def started(how: str) -> torch.Tensor:
        weight: torch.Tensor = prepared(recipe, f"drafter.readout_init={how}").drafter.injection.readouts[0].weight
        return weight.detach()

    space = TransferSpace.fit(tiny_target().head_weight, 16)
    assert torch.equal(started("directions"), prepared(recipe).drafter.injection.readouts[0].weight)
    torch.testing.assert_close(started("whitened") / started("whitened").norm(), space.basis / space.basis.norm())
    cosines = torch.cosine_similarity(started("random"), space.directions)
    assert cosines.abs().max() < 0.6


def test_defaults_are_the_papers() -> None:
    assert ObjectiveRecipe() == ObjectiveRecipe().settled()
    assert replacement_layers(ObjectiveRecipe(), DSpineConfig()) == 3
    one = DSpineConfig(num_hidden_layers=1)
    assert replacement_layers(ObjectiveRecipe(), one) == 0
