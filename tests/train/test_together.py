"""Two processes with uneven data are one process on all of it: gradients, metrics, and what is saved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.processes import run_together
from tests.support.tiny_target import MASK, tiny_target
from tests.train.test_objective import double, rows_from, rows_of

from dspine.config import Recipe
from dspine.drafter.registry import KINDS
from dspine.train.learner import Learner, Moment
from dspine.train.objectives.choice import objective_for
from dspine.train.processes import ALONE
from dspine.train.sequences import online_batch

SIZES = {
    "dspine": {"num_hidden_layers": 2, "transfer_rank": 16, "message_size": 8, "top_k": 4},
    "dflash": {"num_hidden_layers": 2},
    "dflash2": {"num_hidden_layers": 2, "top_k": 4},
    "domino": {"num_hidden_layers": 2, "logits_start": 1},
    "dspark": {"num_hidden_layers": 2},
    "eagle3": {},
}
MOMENT = Moment(step=5, epoch=0, learning_rate=1e-3, beta=0.4, replacement=0.5, progress=0.0)
# How two processes may hold five sequences: unevenly, several micro-batches against one, and nothing against all.
SHARES = {"uneven": ([[0, 1], [2]], [[3, 4]]), "all": ([], [[0, 1, 2, 3, 4]])}


@pytest.fixture(autouse=True)
def _one_thread():
    """As in the processes that are started: the target's float32 features depend on it, in the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def learner_of(kind, dtype, processes=ALONE, sharded=False):
    target = tiny_target()
    sizes = {"target_layer_ids": (1, 3), "block_size": 4, **SIZES[kind]}
    config = KINDS[kind].config.for_target(target.facts, MASK, **sizes)
    torch.manual_seed(0)
    drafter = KINDS[kind].build(config, target.embedding.to(dtype), target.head_weight.to(dtype), None).to(dtype)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    recipe = Recipe.model_validate(
        {
            "target": "tiny",
            "output": "none",
            "data": {"prompts": "none"},
            "drafter": {"kind": kind, "mask_token": "none"},
            "training": {"steps": 1},
        }
    )
    return Learner(
        drafter,
        objective_for(drafter, recipe, dtype),
        clip=1e9,
        anchors_per_sample=5,
        precision=dtype,
        seed=3,
        processes=processes,
        sharded=sharded,
    )


def batch_of(dtype):
    batch = online_batch(tiny_target(), rows_of(tiny_target(), (3, 40, 7, 12, 2)), (1, 3))
    return double(batch) if dtype == torch.float64 else batch


def whole_gradient(learner):
    grads = {name: p.grad for name, p in learner.drafter.named_parameters()}
    return {
        name: torch.zeros(()) if g is None else (g.full_tensor() if hasattr(g, "full_tensor") else g).detach().clone()
        for name, g in grads.items()
    }


def gradient(processes, kind, dtype, share, sharded):
    learner = learner_of(kind, dtype, processes, sharded)
    batch = batch_of(dtype)
    report = learner.gradients([rows_from(batch, rows) for rows in SHARES[share][processes.rank]], MOMENT)
    return report, whole_gradient(learner)


def gradients(processes, settings):
    return [gradient(processes, *setting) for setting in settings]


def test_two_processes_make_the_gradient_and_the_metrics_of_one(tmp_path):
    settings = [(kind, torch.float64, "uneven", False) for kind in KINDS]
    settings += [("dspine", torch.float64, "all", False), ("dspine", torch.float32, "uneven", False)]
    settings += [(kind, torch.float64, "uneven", True) for kind in ("dspine", "domino", "eagle3")]
    settings += [("dspine", torch.float64, "all", True)]
    found = run_together(2, gradients, settings, folder=tmp_path)
    for (kind, dtype, share, sharded), first, second in zip(settings, *found, strict=True):
        learner = learner_of(kind, dtype)
        expected = learner.gradients([batch_of(dtype)], MOMENT)
        exact = dtype == torch.float64
        alone = whole_gradient(learner)
        assert sum(float(g.abs().max()) > 0 for g in alone.values()) > len(alone) / 2
        for report, shared in (first, second):
            said = f"{kind} {share} sharded={sharded}"
            assert (report.blocks, report.tokens, report.bad) == (expected.blocks, expected.tokens, ()), said
            near = {"rel": 1e-10 if exact else 1e-5}
            assert report.loss == pytest.approx(expected.loss, **near), said
            assert report.means == pytest.approx(expected.means, **near), said
            assert report.gradient_norm == pytest.approx(expected.gradient_norm, **near), said
            assert report.match == pytest.approx(expected.match, rel=1e-6), said
            assert (report.acceptance is None) == (expected.acceptance is None)
            if expected.acceptance is not None:
                assert report.acceptance == pytest.approx(expected.acceptance, rel=1e-6), said
            for name, g in alone.items():
                scale = float(g.abs().max()) or 1.0
                torch.testing.assert_close(
                    shared[name].expand_as(g) / scale,
                    g / scale,
                    rtol=0,
                    atol=1e-10 if exact else 1e-5,
                    msg=f"{said} {name}",
                )


def two_steps(processes, sharded):
    """A bad step, which must move nothing, and a good one; then the state, as it is saved."""
    learner = learner_of("dspine", torch.float32, processes, sharded)
    batch = batch_of(torch.float32)
    mine = SHARES["uneven"][processes.rank]
    before = learner.together.weights()
    features = batch.features.clone()
    features[3] = torch.nan
    bad = learner.step([rows_from(replace(batch, features=features), rows) for rows in mine], MOMENT)
    still = all(torch.equal(before[name], value) for name, value in learner.together.weights().items())
    good = learner.step([rows_from(batch, rows) for rows in mine], MOMENT)
    whole = learner.together.whole()
    weights = learner.together.weights()
    return {
        "bad": bad.bad,
        "still": still,
        "good": good.bad,
        "weights": weights,
        "moments": learner.together.moments(learner.optimizer),
        "whole": None if whole is None else {name: value.clone() for name, value in whole.state_dict().items()},
    }


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_what_two_processes_save_is_what_one_would(tmp_path, sharded):
    first, second = run_together(2, two_steps, sharded, folder=tmp_path)
    for found in (first, second):
        assert found["bad"] == ("r3",), "the one sample that is broken, also in the process that does not hold it"
        assert found["still"]
        assert found["good"] == ()
    learner = learner_of("dspine", torch.float32)
    start = {name: value.clone() for name, value in learner.drafter.state_dict().items()}
    learner.step([batch_of(torch.float32)], MOMENT)
    for name, value in learner.drafter.state_dict().items():
        torch.testing.assert_close(first["weights"][name], value, rtol=1e-4, atol=2e-5, msg=name)
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        assert torch.equal(first["whole"][name], first["weights"][name]), name
    assert any(not torch.equal(first["weights"][name], value) for name, value in start.items())
    assert (second["whole"] is None) == sharded
    # The saved state loads in one process, and the step after it is the step after one's own.
    other = learner_of("dspine", torch.float32)
    other.together.load(first["weights"], other.optimizer, first["moments"])
    following = replace(MOMENT, step=6)
    assert other.step([batch_of(torch.float32)], following).loss == pytest.approx(
        learner.step([batch_of(torch.float32)], following).loss, rel=1e-4
    )
    for state in other.optimizer.state.values():
        assert state["step"] == 2
