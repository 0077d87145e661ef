"""Captured drafts: a whole draft is recorded once for a number of rows and a length, and replayed from then on.

One rule: what is recorded reads tensors alone. Anchors, context lengths, sampling parameters and noise lie in buffers
that stay where they are; the number of rows is rounded up to a bucket, whose further rows lie in idle rows of the
cache, and the length to a stretch, which masks hide. A recording is good for one storage of one cache, and is let go
with it. Source: DSpine (arXiv 2609.36173), section on kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dspine.drafter.dspine import DSpine
from dspine.drafter.proposal import Proposal
from dspine.kernels.choice import Kernels
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.upload import upload
from dspine.stages import stage, unclocked

BUCKETS = (1, 2, 4, 8, 16, 32, 64)  # rows; a batch beyond the last is recorded as it is
STRETCH = 512  # slots of attention; a recording for every stretch of the context's length
Run = Callable[[], list[Tensor]]


@dataclass(frozen=True)
class Recording:
    """replay: does again what was recorded, on what the buffers hold now; results: where its results lie each time."""

    replay: Callable[[], object]
    results: list[Tensor]


class Recorder(Protocol):
    """Makes recordings."""

    def record(self, run: Run) -> Recording:
        """Record what `run` gives a device to do. It may be run before and meanwhile; only `replay` counts."""


class CudaRecorder:
    """CUDA graphs, which share one pool of memory."""

    WARM_UPS = 2  # runs that compile and tune kernels and make workspaces, none of which may happen inside a graph

    def __init__(self) -> None:
        self._pool: Any = None  # the handle of the graphs' memory, once there is one

    def record(self, run: Run) -> Recording:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(self.WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            results = run()
        self._pool = graph.pool()
        return Recording(graph.replay, results)


@dataclass(frozen=True)
class Buffers:
    """The inputs of a draft of B rows, at addresses that stay.

    anchors, starts: (B,) int64. uniforms: (B, M) float32. law: its tensors are (B,).
    """

    anchors: Tensor
    starts: Tensor
    uniforms: Tensor
    law: Law

    @classmethod
    def of(cls, rows: int, places: int, greedy: bool, device: torch.device) -> Buffers:
        """Of idle rows: they draft from token 0 at position 0, and nobody looks at what."""
        ones, zeros = [1.0] * rows, [0] * rows
        law = Law.of([0.0] * rows if greedy else ones, zeros, ones, [0.0] * rows, device)
        # Any row may come to be greedy or truncated: the host must not decide by what it holds now.
        law = Law(law.temperature, law.top_k, law.top_p, law.min_p, greedy, drawn=False, cut=tuple(range(rows)))
        anchors, starts = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        return cls(anchors, starts, torch.zeros(rows, places, device=device), law)

    def fill(self, anchors: Tensor, starts: Sequence[int], law: Law, uniforms: Tensor | None) -> None:
        """Take in the inputs of the first rows; those behind are idle."""
        rows = len(anchors)
        self.starts.zero_()
        pairs = [(self.anchors, anchors), (self.starts, upload(starts, self.starts.device))]
        if uniforms is not None:
            names = ("temperature", "top_k", "top_p", "min_p")
            pairs += [(getattr(self.law, name), getattr(law, name)) for name in names]
            pairs.append((self.uniforms, uniforms))
        for held, new in pairs:
            held[:rows].copy_(new, non_blocking=True)


@dataclass(frozen=True)
class Kept:
    """A recording with its buffers, and which fields of a proposal its results are."""

    buffers: Buffers
    recording: Recording
    fields: tuple[str, ...]


class CapturedDraft:
    """A DSpine drafter that replays its drafts; proposals hold until the next call of `propose`.

    Args:
        network: the drafter.
        recorder: how drafts are recorded.
        buckets: numbers of rows, ascending. stretch: slots.
    """

    def __init__(
        self, network: DSpine, recorder: Recorder, *, buckets: Sequence[int] = BUCKETS, stretch: int = STRETCH
    ) -> None:
        self.network = network
        self._recorder = recorder
        self._buckets = tuple(buckets)
        self._stretch = stretch
        self._cache: RowCache | None = None
        self._capacity = 0
        self._kept: dict[tuple[int, int, int, bool], Kept] = {}

    @property
    def block_size(self) -> int:
        return self.network.block_size

    @property
    def candidates(self) -> int:
        return self.network.candidates

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.network.target_layer_ids

    @property
    def max_positions(self) -> int:
        return self.network.max_positions

    @property
    def confident(self) -> bool:
        return self.network.confident

    @property
    def kernels(self) -> Kernels:
        """Whose arithmetic is recorded."""
        return self.network.kernels

    @kernels.setter
    def kernels(self, kernels: Kernels) -> None:
        if kernels is not self.network.kernels:
            self.network.kernels = kernels
            self._kept.clear()

    @property
    def recordings(self) -> int:
        """How many drafts are held."""
        return len(self._kept)

    def new_cache(self, rows: int) -> RowCache:
        return self.network.new_cache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.network.observe(cache, span, features, counts, tokens)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        rows = len(anchors)
        starts = cache.lengths[first : first + rows]
        limit = self._limit(cache, max(starts))
        self._follow(cache)
        key = (first, self._bucket(rows, cache.rows - first), limit, law.greedy)
        kept = self._kept.get(key)
        with stage("draft/replay"):
            buffers = Buffers.of(key[1], self.candidates, law.greedy, anchors.device) if kept is None else kept.buffers
            buffers.fill(anchors, starts, law, None if law.greedy else uniforms)
            if kept is None:  # after filling: to record is to run, and a run writes at the rows' starts
                kept = self._kept[key] = self._record(cache, buffers, first, limit)
            kept.recording.replay()
        fields = dict(zip(kept.fields, kept.recording.results, strict=True))
        return Proposal(**{name: field[:rows] for name, field in fields.items()})

    def _bucket(self, rows: int, room: int) -> int:
        """Rows of the recording that serves `rows`: the next bucket, as far as the cache has rows for it."""
        return min(next((size for size in self._buckets if size >= rows), rows), room)

    def _limit(self, cache: RowCache, longest: int) -> int:
        """Slots that attention reads, and room for them."""
        reach = longest + self.block_size
        limit = reach + -reach % self._stretch
        cache.reserve(limit)
        return limit

    def _follow(self, cache: RowCache) -> None:
        """Let recordings go whose cache, or its storage, is another by now."""
        if cache is not self._cache or cache.capacity != self._capacity:
            self._kept.clear()
            self._cache, self._capacity = cache, cache.capacity

    def _record(self, cache: RowCache, buffers: Buffers, first: int, limit: int) -> Kept:
        span = DeviceSpan(first, buffers.starts, self.block_size, limit)
        fields: tuple[str, ...] = ()

        def run() -> list[Tensor]:
            nonlocal fields
            uniforms = None if buffers.law.greedy else buffers.uniforms
            proposal = self.network.propose_at(cache, span, buffers.anchors, buffers.law, uniforms)
            fields, results = proposal.held()
            return results

        with unclocked():
            recording = self._recorder.record(run)
        return Kept(buffers, recording, fields)
