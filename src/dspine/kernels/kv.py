"""Keys and values of several layers for the rows of a ragged batch.

One rule: a slot *is* an absolute position. New tokens are written in place at their positions; rolling a row back
is nothing but a smaller length, since a query sees only slots at or before its own position, and each of those has
been written by the row's committed tokens or by the very forward that asks. So rows of one batch may accept
different numbers of candidates without moving a byte, and padding behind a row's last token is harmless. Tokens of side
branches lie in the slots behind their row's line for the length of one forward (`kernels/branches.py`): none of them is
ever committed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from dspine.kernels.branches import branch_positions, branch_sight
from dspine.kernels.upload import upload

GROWTH = 256  # slots; storage grows by at least this much, so that growing stays rare


@dataclass(frozen=True)
class Span:
    """Where one forward writes: rows `first .. first+B-1`, `width` new tokens each, row b's first at `starts[b]`.

    `ends`: numbers of slots that attention may read, rising; beyond the last one they come again, behind its multiples.
    Kernels sum over slots in vectors and in parts, so that a query's result depends on where the slots end, in the last
    bit; by the right ends seldom or never (`kernels/attention.py`).

    `whole`: none of the new tokens will be taken back. Slots do not mind; states of layers that have no slots need then
    not be kept place by place (`target/states.py`).

    `counts`: the new tokens of each row, at most `width`, where they are not all as many. Such a span is *ragged*: its
    tokens come end to end, as one line of N tokens (`kernels/ragged.py`).

    `parents`: of each row's last tokens, which are side branches, the place in the row's new tokens of what each of
    them follows; empty for a row without any. None: no row has any. Their slots come one after the other all the same,
    their positions and what they see go by what they follow.
    """

    first: int
    starts: tuple[int, ...]
    width: int
    ends: tuple[int, ...] = (1,)
    whole: bool = False
    counts: tuple[int, ...] | None = None
    parents: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(cls, first: int, starts: Sequence[int], counts: Sequence[int]) -> Span:
        """The span of rows with so many new tokens each, ragged only if these differ."""
        width = max(counts)
        return cls(first, tuple(starts), width, counts=None if min(counts) == width else tuple(counts))

    @property
    def rows(self) -> int:
        return len(self.starts)

    @property
    def each(self) -> tuple[int, ...]:
        """New tokens of each row."""
        return self.counts or (self.width,) * self.rows

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return sum(self.each)

    @cached_property  # a forward asks twice a layer
    def limits(self) -> list[int]:
        """Number of slots that attention reads of each row: those that it holds after this forward, up to an end."""
        last, found = self.ends[-1], []
        for start, count in zip(self.starts, self.each, strict=True):
            whole = (start + count - 1) // last * last
            found.append(whole + next(end for end in self.ends if end >= start + count - whole))
        return found

    @cached_property
    def limit(self) -> int:
        """Number of slots that attention reads of all rows together: as of the longest."""
        return max(self.limits)

    @property
    def even(self) -> Span:
        """The span as a rectangle: shorter rows are filled up with tokens that nobody sees, beside branches too."""
        parents = self.parents
        if parents is not None:
            filling = [self.width - count for count in self.each]
            parents = tuple((*own, *(0,) * more) for own, more in zip(parents, filling, strict=True))
        return replace(self, counts=None, parents=parents)

    @property
    def aligned(self) -> bool:
        """Whether the new tokens of all rows lie side by side."""
        return self.counts is None and min(self.starts) == max(self.starts)

    def groups(self, most: int) -> list[Span]:
        """The span as several, in order, of at most `most` tokens each, or of one row."""
        bounds, held = [0], 0
        for row, count in enumerate(self.each):
            if held and held + count > most:
                bounds.append(row)
                held = 0
            held += count
        return [self._part(start, stop) for start, stop in pairwise([*bounds, self.rows])]

    def _part(self, start: int, stop: int) -> Span:
        """Rows start..stop-1 of the span."""
        part = Span.of(self.first + start, self.starts[start:stop], self.each[start:stop])
        parents = None if self.parents is None or not any(self.parents[start:stop]) else self.parents[start:stop]
        return replace(part, ends=self.ends, whole=self.whole, parents=parents)

    def slots(self, device: torch.device | str | None = None) -> Tensor:
        """Slot of every new token: (B, T) int64, or (1, N) of a ragged span."""
        if self.counts is not None:
            line = [
                at for start, count in zip(self.starts, self.counts, strict=True) for at in range(start, start + count)
            ]
            return upload(line, device)[None]
        starts = upload(self.starts, device)
        return starts[:, None] + torch.arange(self.width, device=device)

    def positions(self, device: torch.device | str | None = None) -> Tensor:
        """Absolute position of every new token, shaped as the slots, which they are but for side branches."""
        if self.parents is None:
            return self.slots(device)
        rows = zip(self.starts, self.each, self.parents, strict=True)
        each = [branch_positions(start, count, parents) for start, count, parents in rows]
        if self.counts is not None:
            return upload([at for row in each for at in row], device)[None]
        return torch.tensor(each, dtype=torch.int64, device=device)

    def causal_mask(self, device: torch.device | str | None = None, window: int | None = None) -> Tensor | None:
        """Which slots each query sees: bool (B, 1, T, limit), True = visible; None when every query sees all.

        A query at position p sees slots `p - window < slot <= p` (`window` None: all up to p). Filling behind a row's
        own tokens goes on in line.
        """
        alike = self.width == 1 and min(self.starts) + 1 == self.limit
        if alike and (window is None or self.limit <= window):
            return None
        slots = replace(self, counts=None).slots(device)  # (B, T)
        visible = _causal(slots, self.limit, window)
        for row, parents in enumerate(self.parents or ()):
            if parents:
                line = self.each[row] - len(parents)
                sight = branch_sight(self.starts[row], line, parents, self.limit, window)
                visible[row, 0, line : line + len(parents)] = upload(sight, device)
        return visible

    def moved(self, by: int, width: int) -> Span:
        """`width` slots a row, `by` behind the present starts, none before slot 0."""
        return replace(self, starts=tuple(max(start + by, 0) for start in self.starts), width=width)


@dataclass(frozen=True)
class DeviceSpan:
    """A span whose starts a device knows and the host does not, so that a recorded forward serves other lengths too.

    first, width: as in `Span`. starts: (B,) int64. limit: slots that attention reads; no row may reach beyond.
    """

    first: int
    starts: Tensor
    width: int
    limit: int

    @property
    def rows(self) -> int:
        return len(self.starts)

    def slots(self, device: torch.device | str | None = None) -> Tensor:
        """Slot of every new token, which is its position: (B, T) int64, where the starts lie."""
        return self.starts[:, None] + torch.arange(self.width, device=self.starts.device)

    def positions(self, device: torch.device | str | None = None) -> Tensor:
        """Absolute position of every new token: (B, T) int64, where the starts lie."""
        return self.slots(device)

    def causal_mask(self, device: torch.device | str | None = None, window: int | None = None) -> Tensor:
        """As `Span.causal_mask`; there is always one, since the host does not know what every query sees."""
        return _causal(self.positions(device), self.limit, window)

    def moved(self, by: int, width: int) -> DeviceSpan:
        """As `Span.moved`; within the same limit."""
        return replace(self, starts=(self.starts + by).clamp(min=0), width=width)


def _causal(slots: Tensor, limit: int, window: int | None) -> Tensor:
    """Which of `limit` slots queries in line, in slots (B, T), see: bool (B, 1, T, limit)."""
    query = slots[:, None, :, None]
    slot = torch.arange(limit, device=slots.device)
    visible = slot <= query
    if window is not None:
        visible &= slot > query - window
    return visible


class RowCache:
    """Keys and values, written in place.

    `lengths[row]` is the number of committed slots of a row; whoever commits tokens sets it. Storage of a layer is
    made at its first write, (rows, G, capacity, D) with that layer's own head count and width.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        self.rows = rows
        self.lengths = [0] * rows
        self.capacity = 0
        self._dtype = dtype
        self._device = device
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._span: Span | DeviceSpan | None = None
        self._slice: slice | None = None
        self._places: tuple[Tensor, Tensor] | None = None

    @property
    def layers(self) -> int:
        return len(self._keys)

    @property
    def bytes(self) -> int:
        """Bytes of storage that the cache holds."""
        held = (t for t in (*self._keys, *self._values) if t is not None)
        return sum(t.numel() * t.element_size() for t in held)

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` slots a row; what is stored stays."""
        if capacity <= self.capacity:
            return
        self.capacity = max(capacity, self.capacity + GROWTH)
        for side in (self._keys, self._values):
            for layer, stored in enumerate(side):  # one after the other: only one is there twice meanwhile
                side[layer] = self._grown(stored)

    def open(self, span: Span | DeviceSpan) -> None:
        """Begin a forward: every `write` until the next `open` goes where `span` says."""
        if span.first + span.rows > self.rows:
            raise IndexError(f"rows {span.first}..{span.first + span.rows - 1} of a cache of {self.rows} rows")
        self.reserve(span.limit)
        self._span = span
        # Rows that start alike are one slice; others are written by one index for all layers of the forward.
        if isinstance(span, Span) and span.aligned:
            self._places = None
            self._slice = slice(span.starts[0], span.starts[0] + span.width)
        elif isinstance(span, Span) and span.counts is not None:
            each = [row for row, count in enumerate(span.counts) for _ in range(count)]
            self._places = (upload(each, self._device)[None], span.slots(self._device))  # (1, N)
        else:
            rows = torch.arange(span.rows, device=self._device)[:, None]  # (B, 1)
            self._places = (rows, span.slots(self._device))

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new tokens of the open span and return all slots up to its limit.

        Args:
            layer: which layer, from 0.
            keys, values: (B, G, T, D), or (1, G, N, D) of a ragged span; positions already applied to the keys.

        Returns:
            views (B, G, limit, D) of the storage.
        """
        span = self._span
        if span is None:
            raise RuntimeError("RowCache.write before RowCache.open")
        stored_keys = self._stored(self._keys, layer, keys)
        stored_values = self._stored(self._values, layer, values)
        rows = slice(span.first, span.first + span.rows)
        for stored, new in ((stored_keys, keys), (stored_values, values)):
            if self._places is None:
                stored[rows, :, self._slice] = new
            else:  # indexed rows of G·D numbers: `scatter_` would go through them one by one
                each, slots = self._places
                stored[rows][each, :, slots] = new.transpose(1, 2)
        return stored_keys[rows, :, : span.limit], stored_values[rows, :, : span.limit]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """What the open span sees of a layer that has been written: views (B, G, limit, D) of the storage."""
        span, keys, values = self._span, self._keys[layer], self._values[layer]
        if span is None or keys is None or values is None:
            raise RuntimeError("RowCache.read before RowCache.open, or of a layer that was never written")
        rows = slice(span.first, span.first + span.rows)
        return keys[rows, :, : span.limit], values[rows, :, : span.limit]

    def commit(self, row: int, length: int) -> None:
        """Say that the first `length` slots of a row hold committed tokens (also how a row is rolled back)."""
        if not 0 <= length <= self.capacity:
            raise IndexError(f"row {row}: length {length} outside the capacity of {self.capacity} slots")
        self.lengths[row] = length

    def commit_span(self, span: Span, counts: Sequence[int]) -> None:
        """Commit the first `counts` of the span's new tokens, row by row."""
        for row, (start, count) in enumerate(zip(span.starts, counts, strict=True), span.first):
            self.commit(row, start + count)

    def move(self, source: int, target: int) -> None:
        """Copy a row's committed slots over another row."""
        length = self.lengths[source]
        for stored in (*self._keys, *self._values):
            if stored is not None:
                stored[target, :, :length] = stored[source, :, :length]
        self.lengths[target] = length

    def _stored(self, side: list[Tensor | None], layer: int, like: Tensor) -> Tensor:
        stored = side[layer]
        if stored is None:
            shape = (self.rows, like.shape[1], self.capacity, like.shape[3])
            # Zeros, not empty: a masked slot is multiplied by weight 0, and 0 · NaN would be NaN.
            stored = torch.zeros(shape, dtype=self._dtype, device=self._device)
            side[layer] = stored
        return stored

    def _grown(self, stored: Tensor | None) -> Tensor | None:
        if stored is None:
            return None
        rows, heads, old, width = stored.shape
        grown = stored.new_zeros(rows, heads, self.capacity, width)
        grown[:, :, :old] = stored
        return grown
