"""Marks in the stream of a CUDA device, for a stage clock: work is charged to the stage that queued it.

One rule: nothing waits while the clock runs. Events are read when the table is made, after one synchronisation.
"""

from __future__ import annotations

import torch


class CudaMarks:
    """Marks of the current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Seconds on the device between two marks."""
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1000
