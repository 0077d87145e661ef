"""A whole run by two processes: as one process makes it, killed and gone on with, and by the launchers' environment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate import PartialState
from tests.support.processes import run_together
from tests.support.tiny_target import tiny_target
from tests.train.test_trainer import log_of, recipe, steps_of  # noqa: F401  recipe is a fixture

from dspine.checkpoint import load_drafter
from dspine.errors import ConfigError
from dspine.train import trainer as training
from dspine.train.processes import ALONE, COUNTS, ONE_ALONE, join
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


def launched(monkeypatch, **variables):
    """As a launcher leaves the environment; what accelerate adds to it goes with the test."""
    for name in (*COUNTS, *ONE_ALONE, "LOCAL_RANK", "RANK"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_alone_nothing_is_joined(monkeypatch):
    launched(monkeypatch)
    assert join() is ALONE
    launched(monkeypatch, ACCELERATE_USE_CPU="True", ACCELERATE_MIXED_PRECISION="no")  # --num_processes 1
    assert join() is ALONE
    launched(monkeypatch, WORLD_SIZE="1", MASTER_PORT="29500")
    assert join() is ALONE
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"training\.sharded"):
        join()


def test_a_launcher_that_starts_one_process_where_several_were_asked_for_is_named(monkeypatch):
    launched(monkeypatch, ACCELERATE_USE_CPU="True", ACCELERATE_MIXED_PRECISION="no", MASTER_PORT="29500")
    with pytest.raises(ConfigError, match="several processes and started this one alone") as caught:
        join()
    assert "accelerate launch --multi_gpu" in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE in the environment is 'two'"),
        ({"WORLD_SIZE": "2"}, "cannot find each other: .*MASTER_ADDR"),
    ],
)
def test_an_environment_that_says_too_little_is_refused(monkeypatch, variables, said):
    launched(monkeypatch, **variables)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    PartialState._reset_state()
    with pytest.raises(ConfigError, match=said):
        join()
    PartialState._reset_state()


def by_mpi(rank, folder, port):
    """What MPI tells a process, and nothing else."""
    torch.set_num_threads(1)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    names = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
    os.environ |= {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    PartialState._reset_state()
    processes = join()
    torch.save((processes.rank, processes.local, processes.most(10 + rank)), folder / f"mpi-{rank}.pt")
    torch.distributed.destroy_process_group()


def test_processes_of_mpi_are_joined(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=by_mpi, args=(rank, tmp_path, port)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [torch.load(tmp_path / f"mpi-{rank}.pt") for rank in range(2)] == [(0, 0, 11), (1, 1, 11)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "code", "said"),
    [
        (("torchrun", "--nproc-per-node", "2"), 0, "in each of 2 processes"),
        (("accelerate", "launch", "--multi_gpu", "--num_processes", "2"), 0, "in each of 2 processes"),
        (("accelerate", "launch", "--cpu", "--num_processes", "2"), 1, "started this one alone"),
    ],
    ids=["torchrun", "accelerate", "accelerate-cpu"],
)
def test_the_documented_launchers(tmp_path, launcher, code, said):
    """On the nano target, as docs/training.md writes the commands."""
    content = {
        "target": "nano",
        "output": str(tmp_path / "run"),
        "build": {"prompts": {"builder": "nano", "count": 60}},
        "data": {"max_new_tokens": 24},
        "drafter": {"mask_token": "<|mask|>", "num_hidden_layers": 1, "block_size": 4},
        "training": {"steps": 3, "window_samples": 6, "anchors_per_sample": 4},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    program = Path(sys.executable).with_name(launcher[0])
    command = [program, *launcher[1:], "-m", "dspine", "train", path]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert (tmp_path / "run" / "drafter").exists() == (code == 0)
