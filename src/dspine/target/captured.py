"""Captured verification: the target's forward over blocks is recorded once for a number of rows, a width and a length,
and replayed from then on.

One rule: the same forward as `Target.forward`, over static buffers: tokens and starts are copied into them, keys and
values are written in place where the starts say. Rows are rounded up to a bucket, whose further rows lie behind what
the cache holds there; widths to a power of two or the whole block, whose further tokens lie behind a row's last, where
later ones overwrite them before anything sees them. So the host knows no more than shapes, and waits for nothing.
Source: DSpine (arXiv 2609.36173), section on kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dspine.kernels.kv import DeviceSpan, Span
from dspine.kernels.recording import BUCKETS, STRETCH, CaptureError, Recorder, Recording, Shelf
from dspine.kernels.upload import upload
from dspine.stages import unclocked
from dspine.target.cache import TargetCache
from dspine.target.model import Target, TargetOutput


@dataclass(frozen=True)
class Verification:
    """A recorded forward with its inputs: ids (B, T) and starts (B,), int64."""

    ids: Tensor
    starts: Tensor
    recording: Recording

    def fill(self, ids: Tensor, starts: Sequence[int]) -> None:
        """Take in the starts of all rows, and the tokens of the first of them; what lies behind is any token."""
        self.starts.copy_(upload(starts, self.starts.device), non_blocking=True)
        self.ids[: ids.shape[0], : ids.shape[1]].copy_(ids)

    def again(self, rows: int, width: int) -> TargetOutput:
        """The output of the first rows and tokens, with the inputs as they are."""
        self.recording.replay()
        hidden, *features = (each[:rows, :width] for each in self.recording.results)
        return TargetOutput(hidden, features[0] if features else None)


class CapturedForward:
    """`Target.forward` for spans of up to a block, replayed; outputs hold until the next call.

    Rows of a ragged span are filled up, as the forward of a target that is not `ragged` fills them.
    Wider spans, those with side branches, and those whose last tokens would lie beyond the target's positions, run as
    they are.

    Args:
        target: without states, which the host keeps the places of.
        recorder: how forwards are recorded.
        block: tokens of the widest span, anchor and candidates.
        forced: raise where something cannot be recorded, instead of going on without recordings, with a warning.
        buckets: numbers of rows, ascending. stretch: slots.

    Raises:
        CaptureError: the target keeps states.
    """

    def __init__(
        self,
        target: Target,
        recorder: Recorder,
        block: int,
        *,
        forced: bool = True,
        buckets: Sequence[int] = BUCKETS,
        stretch: int = STRETCH,
    ) -> None:
        if target.stateful:
            raise CaptureError(
                f"capture: {target.name} keeps recurrent states, which cannot be recorded", "Use off, or auto."
            )
        self._target = target
        self._recorder = recorder
        self._forced = forced
        self._widths = sorted({1 << power for power in range(block.bit_length()) if 1 << power < block} | {block})
        self._shelf = Shelf[Verification](buckets=buckets, stretch=stretch)
        self._given_up = False

    @property
    def recordings(self) -> int:
        """How many forwards are held."""
        return len(self._shelf)

    def __call__(self, ids: Tensor, cache: TargetCache, span: Span, taps: Sequence[int] = ()) -> TargetOutput:
        """As `Target.forward`."""
        held = self._held(ids, cache, span, tuple(taps))
        if held is None:
            return self._target.forward(ids, cache, span, taps)
        return held.again(*ids.shape)

    @torch.no_grad()
    def _held(self, ids: Tensor, cache: TargetCache, span: Span, taps: tuple[int, ...]) -> Verification | None:
        """The recording that serves a span, its inputs filled; None: there cannot be one."""
        width = next((width for width in self._widths if width >= span.width), None)
        # The storage's first write makes it, which is no part of a recording.
        if self._given_up or width is None or span.parents is not None or not cache.rows.bytes:
            return None
        size = self._shelf.rows(span.rows, cache.rows.rows - span.first)
        starts = [*span.starts, *cache.rows.lengths[span.first + span.rows : span.first + size]]
        if max(starts) + width > self._target.context_limit:
            return None
        limit = self._shelf.reserved(cache.rows, max(starts) + width)

        def record() -> Verification:
            made = DeviceSpan(span.first, upload(starts, ids.device).clone(), width, limit)
            return self._record(cache, F.pad(ids, (0, width - ids.shape[1], 0, size - len(ids))), made, taps)

        try:
            held = self._shelf.take((span.first, size, width, limit, taps), record)
        except CaptureError as fault:
            if self._forced:
                raise
            self._given_up = True
            what = f"{fault.what}; verification goes on without recordings, slower"
            warnings.warn(what, RuntimeWarning, stacklevel=3)
            return None
        held.fill(ids, starts)
        return held

    def _record(self, cache: TargetCache, ids: Tensor, span: DeviceSpan, taps: tuple[int, ...]) -> Verification:
        """Record the forward of ids (B, T) at a span; from now on both are its inputs."""

        def run() -> list[Tensor]:
            out = self._target.forward_at(ids, cache, span, taps)
            return [out.hidden] if out.features is None else [out.hidden, out.features]

        with unclocked():
            return Verification(ids, span.starts, self._recorder.record(run))
