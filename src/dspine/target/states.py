"""Convolution and recurrent states of several layers for the rows of a ragged batch.

One rule: a row's state stands in front of a position, as its keys end there; the next forward's start says which. What
a forward changes is not final until the next `open`: each of its rows is then taken to the place where it goes on, so
that rows may accept different numbers of candidates, and padding behind a row's last token leaves no trace.

A forward whose tokens may be rejected keeps one of two things until then:

* `snapshot`: the state after every place. The layers run place by place;
* `replay`: the projected inputs of the block. The layers run in their block form, and once more over the accepted
  prefix, from the state before the block, when it is known.

A forward of one token, and one whose tokens all stay (`Span.whole`), keeps neither.
Source: ReplaySSM, as serving engines verify hybrid models with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dspine.kernels.kv import Span
from dspine.target.mixers import Block, Call, Mixer

Method = Literal["snapshot", "replay"]
Key = tuple[str, int]  # "conv" or "recurrent", and which of a layer's
Taken = list[tuple[list[int], dict[Key, Tensor]]]  # rows of the cache, and their states (rows, ...)

CONV, RECURRENT = "conv", "recurrent"


@dataclass
class _Layer:
    """States of one layer: `stored` (rows, ...) before the open forward, `live` (B, ...) within it."""

    stored: dict[Key, Tensor] = field(default_factory=dict)
    live: dict[Key, Tensor] = field(default_factory=dict)
    places: list[dict[Key, Tensor]] = field(default_factory=list)  # snapshots, after place 0, 1, ...
    block: Block | None = None
    mixer: Mixer | None = None
    ran: bool = False

    def clear(self) -> None:
        self.live, self.places, self.block, self.ran = {}, [], None, False

    def tensors(self) -> Iterable[Tensor]:
        for states in (self.stored, self.live, *self.places):
            yield from states.values()


class StateCache:
    """States of the layers that keep any.

    Args:
        rows: number of rows.
        method: says how to keep what a forward of so many rows and tokens may have to give back.
    """

    def __init__(self, rows: int, method: Callable[[int, int], Method]) -> None:
        self._rows = rows
        self._method = method
        self._layers: dict[int, _Layer] = {}
        self._at: list[int | None] = [0] * rows  # where each row's stored state stands; None: nowhere any more
        self._span: Span | None = None
        self._mode: Method | None = None

    @property
    def bytes(self) -> int:
        """Bytes held, what the last forward keeps included."""
        held = sum(t.numel() * t.element_size() for layer in self._layers.values() for t in layer.tensors())
        return held + sum(layer.block.bytes for layer in self._layers.values() if layer.block is not None)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's states."""
        stored = (t for layer in self._layers.values() for t in layer.stored.values())
        return sum(t[0].numel() * t.element_size() for t in stored)

    def open(self, span: Span, lengths: Sequence[int]) -> None:
        """Begin a forward: bring the last one's rows to where they go on (`span`, else `lengths`), and zero new ones.

        Raises:
            RuntimeError: a row's state can no longer be brought to the start that the span says.
        """
        starts = dict(enumerate(span.starts, span.first))
        self.settle([starts.get(row, length) for row, length in enumerate(lengths)])
        for row, start in starts.items():
            if start == 0:
                self._at[row] = 0
                for layer in self._layers.values():
                    for stored in layer.stored.values():
                        stored[row] = 0
            elif self._at[row] != start:
                raise RuntimeError(f"row {row}: its state stands at {self._at[row]}, and cannot go on at {start}")
        self._span = span
        self._mode = None if span.whole or span.width == 1 else self._method(span.rows, span.width)

    def settle(self, lengths: Sequence[int]) -> None:
        """Bring the rows of the last forward to `lengths` (one a row of the cache), and let go what was kept for it."""
        span = self._span
        if span is None:
            return
        groups: dict[int, list[int]] = {}  # accepted tokens -> rows of the forward
        for index, start in enumerate(span.starts):
            groups.setdefault(lengths[span.first + index] - start, []).append(index)
        kept = range(span.width + 1) if self._mode is not None else (0, span.width)
        reachable = {count for count in groups if count == 0 or (count in kept and self._ran)}
        taken = {number: self._taken(layer, groups, reachable) for number, layer in self._layers.items() if layer.ran}
        moved = [span.first + index for n, rows in groups.items() if n != 0 for index in rows]
        for row in moved:  # an interrupt from here to the end leaves them nowhere rather than in between
            self._at[row] = None
        for number, pieces in taken.items():
            for rows, states in pieces:
                self._store(self._layers[number], rows, states)
        for n in reachable - {0}:
            for index in groups[n]:
                self._at[span.first + index] = span.starts[index] + n
        self._span = None
        for layer in self._layers.values():
            layer.clear()

    def run(self, mixer: Mixer, hidden: Tensor, call: Call) -> Tensor:
        """Run a mixer over the new tokens (B, T, d) of the open forward."""
        layer = self._layers.setdefault(mixer.layer, _Layer())
        layer.mixer = mixer
        layer.live = self._loaded(layer)
        if self._mode == "snapshot":
            out, _ = mixer.stepwise(hidden, call, lambda place: self._snap(layer, place))
        else:
            out, block = mixer.straight(hidden, call, bool(layer.live))
            layer.block = block if self._mode == "replay" else None
        layer.ran = True
        return out

    def move(self, source: int, target: int, lengths: Sequence[int]) -> None:
        """Copy a row's state over another row's, where both are at rest."""
        self.settle(lengths)
        for layer in self._layers.values():
            for stored in layer.stored.values():
                stored[target] = stored[source]
        self._at[target] = self._at[source]

    # ---------------------------------------------------------------- what a mixer asks for and leaves, by its layer

    def read(self, layer: int, key: Key) -> Tensor | None:
        """A state (B, ...) within the open forward; None in front of the first token of all its rows."""
        return self._layers[layer].live.get(key) if layer in self._layers else None

    def write(self, layer: int, key: Key, state: Tensor) -> None:
        self._layers[layer].live[key] = state

    def has_state(self, layer: int | None) -> bool:
        layers = self._layers.values() if layer is None else [self._layers[layer]] if layer in self._layers else []
        return any(each.live for each in layers)

    # ---------------------------------------------------------------- inside

    @property
    def _ran(self) -> bool:
        """Whether the last forward went through all layers (an exception may have ended it)."""
        return bool(self._layers) and all(layer.ran for layer in self._layers.values())

    def _loaded(self, layer: _Layer) -> dict[Key, Tensor]:
        """Copies of the stored states of the open forward's rows; none where all rows begin."""
        span = self._span
        if span is None:
            raise RuntimeError("a forward through a StateCache that was not opened")
        if not any(span.starts):
            return {}
        return {key: stored[span.first : span.first + span.rows].clone() for key, stored in layer.stored.items()}

    def _snap(self, layer: _Layer, place: int) -> None:
        span = self._span
        if span is not None and place < span.width - 1:  # the state after the last place is the live one
            layer.places.append({key: state.clone() for key, state in layer.live.items()})

    def _taken(self, layer: _Layer, groups: dict[int, list[int]], reachable: set[int]) -> Taken:
        """The states of a layer at the places that its rows have reached."""
        span, final = self._span, layer.live
        pieces: Taken = []
        if span is None:
            return pieces
        for count, rows in groups.items():
            if count == 0 or count not in reachable:
                continue
            if count == span.width:
                states = {key: state[rows] for key, state in final.items()} if len(rows) < span.rows else final
            elif self._mode == "snapshot":
                states = {key: state[rows] for key, state in layer.places[count - 1].items()}
            else:
                states = self._replayed(layer, rows, count)
            pieces.append(([span.first + index for index in rows], states))
        return pieces

    def _replayed(self, layer: _Layer, rows: list[int], count: int) -> dict[Key, Tensor]:
        """Run the accepted prefix again from the state before the block; other rows and `live` stay as they are."""
        span, block, mixer, final = self._span, layer.block, layer.mixer, layer.live
        if span is None or block is None or mixer is None:
            raise RuntimeError("a block is to be run again that was not kept")
        fresh = not any(span.starts[index] for index in rows)
        held = [span.first + index for index in rows]
        layer.live = {} if fresh else {key: stored[held].clone() for key, stored in layer.stored.items()}
        try:
            mixer.again(block, rows, count, bool(layer.live))
            return layer.live
        finally:
            layer.live = final

    def _store(self, layer: _Layer, rows: list[int], states: dict[Key, Tensor]) -> None:
        for key, state in states.items():
            if key not in layer.stored:
                layer.stored[key] = state.new_zeros(self._rows, *state.shape[1:])
            layer.stored[key][rows] = state


def always(method: Method) -> Callable[[int, int], Method]:
    """The same method for every forward."""
    return lambda rows, width: method


def last_places(full: Tensor, count: int) -> Tensor:
    """The last `count` places of (B, C, T), with zeros in front if there are fewer; storage of its own."""
    short = count - full.shape[-1]
    return torch.nn.functional.pad(full, (short, 0)) if short > 0 else full[..., full.shape[-1] - count :].clone()
