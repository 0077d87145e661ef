"""A whole run by two processes: as one process makes it, killed and gone on with, and by the launchers' environment."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from tests.support.processes import run_together
from tests.support.tiny_target import tiny_target
from tests.train.test_trainer import log_of, recipe, steps_of  # noqa: F401  recipe is a fixture

from dspine.checkpoint import load_drafter
from dspine.errors import ConfigError
from dspine.train import trainer as training
from dspine.train.processes import ALONE, join
from dspine.train.state import checkpoints
from dspine.train.trainer import Trainer, train


def newest(folder):
    return torch.load(checkpoints(folder / "checkpoints")[-1], weights_only=True)


def run(processes, path, overrides, stop_at=None):
    """A training run; SIGTERM reaches the second process alone, in the middle of a step."""
    if stop_at is not None and processes.rank == 1:
        advance = Trainer._advance

        def stopped(self, journal):
            if self.progress.step == stop_at - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            advance(self, journal)

        training.Trainer._advance = stopped
    summary = train(path, overrides)
    return {"step": summary.progress.step, "finished": summary.finished}


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_two_processes_killed_and_gone_on_with_make_what_they_make_in_one_go(recipe, tmp_path, sharded):  # noqa: F811
    """12 steps of windows of 4, 4 and 3 sequences: with a signal after 5, without, and by one process alone."""
    shared = ["training.steps=12", "training.save_steps=50", f"training.sharded={sharded}", "training.micro_batch=1"]
    cut, whole, alone = ([*shared, f"output={tmp_path / name}"] for name in ("cut", "whole", "alone"))
    assert run_together(2, run, recipe, cut, 5, folder=tmp_path) == [{"step": 5, "finished": False}] * 2
    assert [path.name for path in checkpoints(tmp_path / "cut" / "checkpoints")] == ["step-0000005.pt"]
    for overrides in (cut, whole):
        assert run_together(2, run, recipe, overrides, folder=tmp_path) == [{"step": 12, "finished": True}] * 2
    one, other = newest(tmp_path / "whole"), newest(tmp_path / "cut")
    for name, value in one["model"].items():
        assert torch.equal(value, other["model"][name]), name
    for key, state in one["optimizer"]["state"].items():
        assert all(torch.equal(value, other["optimizer"]["state"][key][name]) for name, value in state.items())
    assert one["progress"] | {"seconds": 0} == other["progress"] | {"seconds": 0}

    summary = train(recipe, alone)
    (tmp_path / "run").symlink_to(tmp_path / "alone")
    expected = steps_of(tmp_path)
    (tmp_path / "run").unlink()
    (tmp_path / "run").symlink_to(tmp_path / "cut")
    found = steps_of(tmp_path)
    assert len(found) == len(expected) == 12, "the first process alone writes the log"
    for a, b in zip(expected, found, strict=True):
        assert (a["step"], a["learning_rate"], a["beta"], a["replacement"]) == (
            b["step"],
            b["learning_rate"],
            b["beta"],
            b["replacement"],
        )
        assert (a["blocks"], a["tokens"]) == (b["blocks"], b["tokens"])
        assert b["loss"] == pytest.approx(a["loss"], rel=2e-3)
    assert [line for line in log_of(tmp_path) if "tau" in line.get("acceptance", {})]
    theirs = load_drafter(str(tmp_path / "cut" / "drafter"), tiny_target()).state_dict()
    for name, value in load_drafter(str(summary.drafter), tiny_target()).state_dict().items():
        torch.testing.assert_close(theirs[name].float(), value.float(), rtol=0.05, atol=0.01, msg=name)


def test_alone_nothing_is_joined(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join() is ALONE
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"training\.sharded"):
        join()
