"""Layer parts that keep a state instead of keys and values: gated delta nets, Mamba, short convolutions.

One rule: the arithmetic stays the model's own. A mixer is the part of a layer that writes states into the cache, found
by what its code calls; it is run over a block in one call, or place by place, and run again over a prefix, always
through its own forward. What its first projections said of a block is remembered, so that neither stepping nor running
again multiplies by their weights a second time.
Source: the compact per-step inputs of ReplaySSM, for any kind of mixer.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

WRITES = frozenset({"update_conv_state", "update_recurrent_state"})  # what transformers' mixers call on a cache

Call = Callable[[Tensor], Tensor]  # hidden (B, T, d) -> (B, T, d), with the rest of a layer's arguments filled in


def find_mixers(layer: nn.Module) -> list[nn.Module]:
    """The parts of a decoder layer that write a convolution or recurrent state into the cache."""
    return [module for module in layer.modules() if _writes_states(type(module))]


@dataclass
class Block:
    """What a mixer was given for a block, enough to run it again over a prefix: hidden (B, T, d), and projections."""

    hidden: Tensor
    call: Call
    projected: dict[Part, Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.hidden, *self.projected.values()))


class Part:
    """The forward of a module right inside a mixer: passes on, or does what the mixer's present run says."""

    def __init__(self, module: nn.Module, mixer: Mixer) -> None:
        self.own: Callable[..., Tensor] = module.forward
        self._mixer = mixer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self._mixer.run
        if run is None or kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return self.own(*args, **kwargs)
        return run.through(self, args[0])


class _Recorded:
    """A run whose projections of the block are kept, and which shows which part comes first and which last."""

    def __init__(self, hidden: Tensor) -> None:
        self._hidden = hidden
        self.projected: dict[Part, Tensor] = {}
        self.newest: tuple[Part, Tensor] | None = None

    def through(self, part: Part, given: Tensor) -> Tensor:
        out = part.own(given)
        if given is self._hidden:
            self.projected[part] = out
        self.newest = (part, out)
        return out


class _Remembered:
    """A run over some rows and places of a block: projections are looked up, the last part gives back its input."""

    def __init__(self, hidden: Tensor, projected: dict[Part, Tensor], last: Part | None) -> None:
        self._hidden = hidden
        self._projected = projected
        self._last = last

    def through(self, part: Part, given: Tensor) -> Tensor:
        if part is self._last:
            return given
        if given is self._hidden and part in self._projected:
            return self._projected[part]
        return part.own(given)


class Mixer:
    """A mixer's forward, for caches of ours; any other call goes through unchanged.

    Args:
        module: the mixer; its `forward` and those of its children are replaced on the instance.
        layer: its number.

    Attributes:
        resumes: whether its block form takes up a state. Some kinds (Mamba) begin every block anew, chunks of a prompt
            too, and have to be run place by place then.
    """

    def __init__(self, module: nn.Module, layer: int) -> None:
        self.layer = layer
        self.resumes = True
        self._own: Callable[..., Any] = module.forward
        self._now = threading.local()
        self._first: tuple[Part, ...] = ()  # parts that are given the block itself, as the first run showed
        self._last: Part | None = None  # the part whose output is the mixer's
        for child in module.children():
            child.forward = Part(child, self)

    @property
    def run(self) -> _Recorded | _Remembered | None:
        """What the parts do at present, in this thread."""
        run: _Recorded | _Remembered | None = getattr(self._now, "run", None)
        return run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward: states of one of our caches are kept by that cache's `run`."""
        given = (*args, *kwargs.values())
        states = next((s for value in given if (s := getattr(value, "states", None)) is not None), None)
        if states is None:
            return self._own(*args, **kwargs)
        if args:
            return states.run(self, args[0], lambda part: self._own(part, *args[1:], **kwargs))
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor) and value.ndim == 3)
        return states.run(self, kwargs[name], lambda part: self._own(**{**kwargs, name: part}))

    def straight(self, hidden: Tensor, call: Call, begun: bool) -> tuple[Tensor, Block]:
        """Run over a block in its block form; also what would be needed to run again.

        Args:
            begun: whether the state holds tokens already.
        """
        if begun and hidden.shape[1] > 1 and not self.resumes:
            return self.stepwise(hidden, call, None)
        recorded = _Recorded(hidden)
        with self._running(recorded):
            out = call(hidden)
        self._first = tuple(recorded.projected)
        last = recorded.newest
        self._last = last[0] if last is not None and last[1] is out else None
        return out, Block(hidden, call, recorded.projected)

    def stepwise(self, hidden: Tensor, call: Call, after: Callable[[int], None] | None) -> tuple[Tensor, Block]:
        """Run over a block place by place; `after(t)` is called when the state holds places up to t."""
        block = Block(hidden, call, {part: part.own(hidden) for part in self._first})
        outs = []
        for place in range(hidden.shape[1]):
            outs.append(self._over(block, slice(None), slice(place, place + 1)))
            if after is not None:
                after(place)
        out = torch.cat(outs, dim=1)
        return (out if self._last is None else self._last.own(out)), block

    def again(self, block: Block, rows: Sequence[int], count: int, begun: bool) -> None:
        """Run over the first `count` places of some rows of a block, for the state alone."""
        steps = begun and not self.resumes
        for place in range(count) if steps else [0]:
            self._over(block, list(rows), slice(place, place + 1 if steps else count))

    def _over(self, block: Block, rows: slice | list[int], places: slice) -> Tensor:
        """Run over some rows and places of a block, on its remembered projections, but for the last part."""
        hidden = block.hidden[rows, places]
        projected = {part: said[rows, places] for part, said in block.projected.items()}
        with self._running(_Remembered(hidden, projected, self._last)):
            return block.call(hidden)

    @contextmanager
    def _running(self, run: _Recorded | _Remembered) -> Iterator[None]:
        self._now.run = run
        try:
            yield
        finally:
            self._now.run = None


def wrap(module: nn.Module, layer: int) -> Mixer:
    """Put a `Mixer` before a module's forward, once."""
    if not isinstance(module.forward, Mixer):
        module.forward = Mixer(module, layer)
    wrapped: Mixer = module.forward
    return wrapped


def _writes_states(kind: type) -> bool:
    functions = (inspect.unwrap(value) for value in vars(kind).values() if inspect.isfunction(value))
    return any(not WRITES.isdisjoint(function.__code__.co_names) for function in functions)
