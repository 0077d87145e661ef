"""Features made by a target in a process of its own, on a device of its own, ahead of the steps that need them.

One rule: what comes is what `OnlineFeatures` makes in the training process: the other process runs the very same
forward over the sequences that it is sent, keeps nothing, and ends with the training process, however that ends. A
fault over there is raised here, with its traceback as the cause.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker

import torch
from torch import Tensor

# Not merely for its names: the import lets tensors pass between processes through shared memory.
from torch.multiprocessing import get_context

from dspine.errors import TargetError
from dspine.target import Target, load_target
from dspine.target.loading import device_named
from dspine.train.online import OnlineFeatures
from dspine.train.responses import TrainingSequence
from dspine.train.sequences import Encoded, SequenceBatch, encode

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # signals that reach whole groups of processes: the training process decides


@dataclass(frozen=True)
class Parcel:
    """Encoded sequences laid end to end in five tensors: each tensor that is sent holds a file open.

    sizes: of each, its tokens and its teachers.
    """

    names: list[str]
    sizes: list[tuple[int, int]]
    ids: Tensor
    loss_mask: Tensor
    features: Tensor
    hidden: Tensor
    lse: Tensor

    @classmethod
    def of(cls, encoded: Sequence[Encoded]) -> Parcel:
        """Pack at least one; the tensors lie on the CPU."""
        sides = (
            torch.cat([getattr(each, side) for each in encoded]).cpu()
            for side in ("ids", "loss_mask", "features", "hidden", "lse")
        )
        return cls([each.id for each in encoded], [(len(each.ids), len(each.lse)) for each in encoded], *sides)

    def opened(self, device: torch.device) -> list[Encoded]:
        """The sequences again, on a device."""
        tokens, teachers = ([size[side] for size in self.sizes] for side in (0, 1))
        sides = [torch.split(part.to(device), tokens) for part in (self.ids, self.loss_mask, self.features)]
        sides += [torch.split(part.to(device), teachers) for part in (self.hidden, self.lse)]
        return [Encoded(name, *parts) for name, *parts in zip(self.names, *sides, strict=True)]


class FeaturesApart:
    """Features of response rows, made by another process.

    Attributes:
        lengths: tokens of every sample, by id.

    Args:
        online: what would make them here. Its target's name and number format are what the other process loads.
        device: of the other process.
        ahead: micro-batches that are made, or being made, while one is trained on.
    """

    def __init__(self, online: OnlineFeatures, device: str, ahead: int) -> None:
        self.online = online
        self.device = device
        self.ahead = ahead
        self.lengths = online.lengths

    def stream(self, groups: Iterable[Sequence[str]]) -> Generator[SequenceBatch]:
        """A batch of each group of sample ids, in their order, on the training target's device.

        The process starts with the first batch and ends with the last, or when the generator is closed.

        Raises:
            DspineError: what the other process met, or that it was killed.
        """
        waiting: deque[Future[Parcel]] = deque()
        with _process(self.online.target, self.device) as pool:
            for names in groups:
                waiting.append(pool.submit(_made, *self.online.asked(names)))
                if len(waiting) > self.ahead:
                    yield self._received(waiting.popleft())
            while waiting:
                yield self._received(waiting.popleft())

    def _received(self, made: Future[Parcel]) -> SequenceBatch:
        return self.online.batch(made.result().opened(self.online.target.device))


def refuse_absent(devices: Iterable[str]) -> None:
    """Look whether all devices are there, before anything is made for them.

    Raises:
        TargetError: one is not.
    """
    for device in devices:
        device_named(device)


@contextmanager
def _process(target: Target, device: str) -> Iterator[ProcessPoolExecutor]:
    """A process that has loaded the target on a device; at the end of the block it finishes its work and ends."""
    # Spawned: a forked process can use neither CUDA nor the threads that torch has begun.
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        with _unsignalled():  # it begins with the first task
            opened = pool.submit(_open, target.name, target.dtype, device)
        opened.result()
        yield pool
    except BrokenProcessPool as error:
        raise TargetError(
            f"the process that makes features on {device} was killed",
            "It ran out of memory, or somebody ended it: see the system's log. In a container /dev/shm has to hold the "
            "micro-batches that are made ahead. Lower training.micro_batch or features.ahead; the same command goes on "
            "from the last checkpoint.",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _unsignalled() -> Iterator[None]:
    """A process that starts in the block hears none of `SIGNALS`, which come here behind the block."""
    resource_tracker.ensure_running()  # whose start would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# What follows runs in the other process.

_loaded: list[Target] = []


def _open(name: str, dtype: torch.dtype, device: str) -> None:
    """Load the target, and bind this process's life to that of its parent."""
    for kind in SIGNALS:
        signal.signal(kind, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()
    _loaded.append(load_target(name, dtype=dtype, device=device))


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # it was killed, and nobody waits for what is under way


def _made(sequences: Sequence[TrainingSequence], taps: Sequence[int], dtype: torch.dtype) -> Parcel:
    return Parcel.of(list(encode(_loaded[0], sequences, taps, dtype)))
