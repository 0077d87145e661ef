"""Several processes that talk over gloo, forked from the test: they start at once, with its imports and patches."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from dspine.train.processes import join


def run_together(
    count: int, function: Callable[..., Any], *arguments: Any, folder: Path, timeout: float = 240.0
) -> list[Any]:
    """What function(processes, *arguments) returns in each of `count` processes; tensors, numbers, lists, dicts.

    Raises:
        RuntimeError: a process failed or was not done in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    made = [folder / f"result-{port}-{rank}.pt" for rank in range(count)]
    children = [
        context.Process(target=_child, args=(rank, count, port, made[rank], function, arguments))
        for rank in range(count)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout)
    codes = [child.exitcode for child in children]
    for child in children:
        if child.is_alive():
            child.kill()
    if any(codes) or None in codes:
        raise RuntimeError(f"exit codes of the processes: {codes}")
    return [torch.load(path, weights_only=False) for path in made]


def _child(
    rank: int, count: int, port: int, made: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)  # a forked process must not wait for its parent's threads
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    PartialState._reset_state()  # whatever the parent was
    torch.save(function(join(), *arguments), made)
    torch.distributed.destroy_process_group()
