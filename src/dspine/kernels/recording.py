"""Recordings: what a device is given to do for a shape is recorded once, and replayed from then on.

One rule: what is recorded reads tensors alone, at addresses that stay. Numbers of rows are rounded up to a bucket and
lengths to a stretch, which masks hide. A recording is good for one storage of one cache, and goes with it; it is
used only if its first replay gave what running it gave. Source: DSpine (arXiv 2609.36173), section on kernels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from dspine.errors import ConfigError
from dspine.kernels.kv import RowCache

Capture = Literal["auto", "on", "off"]
CAPTURES: tuple[Capture, ...] = ("auto", "on", "off")

BUCKETS = (1, 2, 4, 8, 16, 32, 64)  # rows; a batch beyond the last is recorded as it is
STRETCH = 512  # slots of attention; a recording for every stretch of the longest row's length
FINE = 4  # stretches in every doubling of a length, where these are longer
MOST = 64  # recordings held at once; the one that rested longest goes first
NEAR = 1e-2  # of the largest number: how far a replay may be from what was run; the kernels are the same, so far more
# than is ever seen, and far less than a number that was read too early or not at all

Run = Callable[[], list[Tensor]]
T = TypeVar("T")


class CaptureError(ConfigError):
    """Something that cannot be recorded here, or was recorded and replayed otherwise than it ran."""


@dataclass(frozen=True)
class Recording:
    """replay: does again what was recorded, on what the inputs hold now; results: where its results lie each time."""

    replay: Callable[[], object]
    results: list[Tensor]


class Recorder(Protocol):
    """Makes recordings."""

    def record(self, run: Run) -> Recording:
        """Record what `run` gives a device to do. It may be run before and meanwhile, so running it twice must do
        what running it once does.

        Raises:
            CaptureError: it cannot be recorded, or a replay differs from a run.
        """


class CudaRecorder:
    """CUDA graphs, which share one pool of memory."""

    WARM_UPS = 2  # runs that compile and tune kernels and make workspaces, none of which may happen inside a graph

    def __init__(self) -> None:
        self._pool: Any = None  # the handle of the graphs' memory, once there is one

    def record(self, run: Run) -> Recording:
        try:
            wanted, recording = self._recorded(run)
        except RuntimeError as error:  # torch's own, of CUDA and of memory
            raise CaptureError(f"capture: this cannot be recorded as a CUDA graph: {error}", "Use off.") from error
        recording.replay()
        if not all(alike(one, other) for one, other in zip(wanted, recording.results, strict=True)):
            raise CaptureError("capture: a replayed CUDA graph differs from what it was made of", "Use off.")
        return recording

    def _recorded(self, run: Run) -> tuple[list[Tensor], Recording]:
        """What a run gives, and its recording, which has not been replayed."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(self.WARM_UPS):
                wanted = [result.clone() for result in run()]
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # What other threads do to the device meanwhile is theirs: a server has some.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            results = run()
        self._pool = graph.pool()
        return wanted, Recording(graph.replay, results)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether a replay's numbers are those of a run: ids exactly, others up to rounding. The host waits for it."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    size = float(one.float().nan_to_num(0.0, 0.0, 0.0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one.float(), other.float(), atol=NEAR * size, rtol=0.0, equal_nan=True)


class Shelf(Generic[T]):
    """What was recorded over the storage of one cache.

    Args:
        buckets: numbers of rows, ascending. stretch: slots. most: recordings held at once.
    """

    def __init__(self, *, buckets: Sequence[int] = BUCKETS, stretch: int = STRETCH, most: int = MOST) -> None:
        self._buckets = tuple(buckets)
        self._stretch = stretch
        self._most = most
        self._cache: RowCache | None = None
        self._capacity = 0
        self._held: OrderedDict[Hashable, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        self._held.clear()

    def rows(self, rows: int, room: int) -> int:
        """Rows of the recording that serves `rows`: the next bucket, as far as there is room for it."""
        return min(next((size for size in self._buckets if size >= rows), rows), room)

    def reserved(self, cache: RowCache, reach: int) -> int:
        """The slots to record for where rows reach to slot `reach`, with room in the cache; lets go of recordings
        over another storage."""
        stretch = max(self._stretch, (1 << (reach.bit_length() - 1)) // FINE)
        limit = reach + -reach % stretch
        if limit > cache.capacity:
            cache.reserve(1 << (limit - 1).bit_length())  # doubled, so that storage seldom moves
        if cache is not self._cache or cache.capacity != self._capacity:
            self._held.clear()
            self._cache, self._capacity = cache, cache.capacity
        return limit

    def take(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is held under a key; made now if nothing is."""
        if key not in self._held:
            self._held[key] = make()
            if len(self._held) > self._most:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return self._held[key]


def read_capture(capture: str) -> Capture:
    """A choice that is known.

    Raises:
        ConfigError: it is not.
    """
    for known in CAPTURES:
        if capture == known:
            return known
    raise ConfigError(f"capture: {capture!r} is no choice", f"It is one of {', '.join(CAPTURES)}.")
