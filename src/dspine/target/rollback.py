"""Which way the states of a hybrid target are brought back to the accepted place: measured, or as asked.

One rule: both ways give the model's own numbers; they differ in time, in memory, and in rounding, since one steps and
the other goes by blocks. Whoever needs the same bits on every machine names the way; "auto" takes what is quicker on
this one.

Snapshots hold as many states a row as places are verified. They may take `SHARE` of the memory of the model's own
weights; beyond that the inputs are kept and run again, whatever it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from dspine.errors import ConfigError
from dspine.kernels.kv import Span
from dspine.target.cache import TargetCache
from dspine.target.states import Method, StateCache

Asked = Literal["auto", "snapshot", "replay"]
METHODS: tuple[Method, ...] = ("replay", "snapshot")
SHARE = 0.125
RUNS = 3
BEFORE = 4  # tokens in front of a measured block


class Stateful(Protocol):
    """What is asked of a target here; `Target` has it, and says what each part is."""

    name: str
    model: Any
    device: torch.device
    decodable: int

    @property
    def stateful(self) -> bool: ...
    def new_cache(self, rows: int, rollback: Method | None = None) -> TargetCache: ...
    def forward(self, ids: Tensor, cache: TargetCache, span: Span) -> object: ...


@dataclass(frozen=True)
class RollbackCost:
    """What verifying a block costs one way: seconds a round, and bytes of states at the end of its forward."""

    seconds: float
    bytes: int


class Rollback:
    """The choice of a target.

    Args:
        target: its model.
        asked: one of `Asked`.

    Raises:
        ConfigError: another word, or a way for a target that has no states.
    """

    def __init__(self, target: Stateful, asked: Asked) -> None:
        if asked not in get_args(Asked):
            raise ConfigError(f"rollback is {asked!r}", f"give one of {', '.join(get_args(Asked))}")
        if asked != "auto" and not target.stateful:
            raise ConfigError(
                f"rollback is {asked!r}, and {target.name} has no layers that keep a state: keys and values of "
                "rejected candidates are overwritten",
                "Leave it out.",
            )
        self.asked = asked
        self._target = target
        self._chosen: dict[int, Method] = {}  # by width of the block, in powers of two

    @property
    def possible(self) -> tuple[Method, ...]:
        """The ways that may be taken."""
        return METHODS if self.asked == "auto" else (self.asked,)

    def method(self, rows: int, width: int) -> Method:
        """How to keep what a block of `width` tokens a row may have to give back."""
        if self.asked != "auto":
            return self.asked
        size = 1 << (width - 1).bit_length()
        if rows * size * self.row_bytes > SHARE * self._weights:
            return "replay"
        if size not in self._chosen:
            costs = {method: measure(self._target, method, 1, size).seconds for method in METHODS}
            self._chosen[size] = "snapshot" if costs["snapshot"] < costs["replay"] else "replay"
        return self._chosen[size]

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the states of one row, all layers together."""
        cache = self._target.new_cache(1, "replay")
        states = _states(cache)
        self._target.forward(_blank(self._target, 1, 1), cache, Span(0, (0,), 1))
        states.settle([1])
        return states.row_bytes

    @cached_property
    def _weights(self) -> int:
        return sum(p.numel() * p.element_size() for p in self._target.model.parameters())


def measure(
    target: Stateful, method: Method, rows: int, width: int, clock: Callable[[], float] = perf_counter
) -> RollbackCost:
    """Verify blocks of `width` tokens in `rows` rows, half of each accepted, and say what a round costs.

    The cache is its own and is gone afterwards. `clock` counts seconds.
    """
    cache = target.new_cache(rows, method)
    states = _states(cache)
    target.forward(_blank(target, rows, BEFORE), cache, Span(0, (0,) * rows, BEFORE, whole=True))
    ids, at, held = _blank(target, rows, width), BEFORE, 0
    times = []
    for _ in range(RUNS + 1):
        start = clock()
        target.forward(ids, cache, Span(0, (at,) * rows, width))
        held = states.bytes
        at += (width + 1) // 2
        states.settle([at] * rows)
        _finish(target)
        times.append(clock() - start)
    return RollbackCost(min(times[1:]), held)


def _blank(target: Stateful, rows: int, width: int) -> Tensor:
    return torch.arange(rows * width, device=target.device).remainder(target.decodable).view(rows, width)


def _finish(target: Stateful) -> None:
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)


def _states(cache: TargetCache) -> StateCache:
    if cache.states is None:
        raise ValueError("the target keeps no states: there is nothing to roll back")
    return cache.states
