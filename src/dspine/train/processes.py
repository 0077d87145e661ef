"""The processes of a run: which one this is, and what all of them sum and decide together.

One rule: every process reaches the same numbers and the same decisions; the first one alone writes. They are launched
by `torchrun`, by `accelerate launch --multi_gpu` (on a CPU too) or by MPI, one a device; a process that was launched
alone talks to nobody, and one that was to have company and has none says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

from dspine.errors import ConfigError

PATIENCE = timedelta(days=7)  # the others wait while the first answers prompts, writes features or measures tau

# Where launchers say how many processes there are: torchrun and accelerate, then implementations of MPI.
COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
# What accelerate sets where it was asked for several processes and starts one.
ONE_ALONE = {"ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION", "MASTER_PORT"}
WHAT = "--num_processes N -m dspine train RECIPE"


@dataclass(frozen=True)
class Processes:
    """This process's place among `count`; the first has rank 0.

    device: where tensors lie that all processes sum. local: its place among those of this machine.
    """

    rank: int = 0
    count: int = 1
    device: str = "cpu"
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, element by element."""
        if self.count == 1:
            return values
        summed = values.to(self.device, copy=True)
        distributed.all_reduce(summed)
        return summed.to(values.device)

    def most(self, value: int) -> int:
        """The largest of the processes' numbers."""
        if self.count == 1:
            return value
        largest = torch.tensor(value, device=self.device)
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        return int(largest)

    def any(self, flag: bool) -> bool:
        """Whether it holds in one of them."""
        return self.most(int(flag)) > 0

    def gathered(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names of all processes, in the order of the processes."""
        if self.count == 1:
            return tuple(names)
        everyone: list[list[str]] = [[] for _ in range(self.count)]
        distributed.all_gather_object(everyone, list(names))
        return tuple(name for each in everyone for name in each)

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            distributed.barrier()

    def leave(self) -> None:
        """Part from the others when all have come here. To end without it may abort the one that ends last."""
        if self.count > 1:
            distributed.barrier()
            distributed.destroy_process_group()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The block runs in the first process, and then, silently, in the others, which find what it has made."""
        if self.first:
            yield
            self.wait()
        else:
            self.wait()
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                yield


ALONE = Processes()


def _counted() -> str | None:
    """The variable in which a launcher says how many processes there are; None where none does."""
    return next((name for name in COUNTS if name in os.environ), None)


def launched_count() -> int | None:
    """How many processes a launcher says there are; None where there is none.

    Raises:
        ConfigError: what it says is no number.
    """
    if (name := _counted()) is None:
        return None
    try:
        return int(os.environ[name])
    except ValueError as error:
        raise ConfigError(
            f"{name} in the environment is {os.environ[name]!r}, no number of processes", "Take it out, or mend it."
        ) from error


def join() -> Processes:
    """The processes that this one was launched with; itself where it was launched alone.

    Raises:
        ConfigError: the launcher was told to wrap the model in its own way, started one process where it was asked for
            several, or says too little for them to find each other.
    """
    for flag in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        if os.environ.get(flag, "false").lower() == "true":
            raise ConfigError(
                f"the launcher asks for {flag.removeprefix('ACCELERATE_USE_')}, which the recipe decides",
                "Launch with --multi_gpu alone, and set training.sharded: true to share out weights.",
            )
    launched = launched_count()
    if launched is None and os.environ.keys() >= ONE_ALONE:
        raise ConfigError(
            "accelerate launch was asked for several processes and started this one alone, as it does with --cpu and "
            "without --multi_gpu",
            f"For several: accelerate launch --multi_gpu {WHAT}, on a CPU too, or torchrun --nproc-per-node N -m "
            "dspine train RECIPE. For one: dspine train RECIPE.",
        )
    if launched in (None, 1):
        return ALONE
    from accelerate import PartialState

    try:
        state = PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
    except ValueError as error:
        raise ConfigError(
            f"{launched} processes were launched, which cannot find each other: {error}",
            f"Launch them with torchrun or with accelerate launch --multi_gpu {WHAT}, which say where they meet; for "
            f"one process take {_counted()} out of the environment.",
        ) from error
    if state.num_processes != launched:
        raise ConfigError(
            f"{launched} processes were launched, of which this one sees {state.num_processes}",
            f"Launch them with torchrun or with accelerate launch --multi_gpu {WHAT}.",
        )
    return Processes(state.process_index, state.num_processes, str(state.device), state.local_process_index)
