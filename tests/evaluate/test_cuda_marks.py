"""Marks of a CUDA stream, with events that a test plays: recorded in its stream, read once they are reached."""

from __future__ import annotations

import pytest
import torch

from dspine.evaluate.cuda_marks import CudaMarks
from dspine.stages import StageClock, StageTime, stage


class Event:
    """What torch.cuda.Event does, on a device that takes 5 ms between any two events."""

    recorded = 0

    def __init__(self, enable_timing):
        assert enable_timing
        self.at = None
        self.reached = False

    def record(self, stream):
        assert stream == "stream of cuda:1"
        Event.recorded += 1
        self.at = 5.0 * Event.recorded

    def synchronize(self):
        self.reached = True

    def elapsed_time(self, other):
        assert other.reached, "read before the device got there"
        return other.at - self.at


def test_stages_are_timed_by_the_devices_events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    with StageClock(CudaMarks(torch.device("cuda:1"))) as clock:
        for _ in range(3):
            with stage("draft/backbone"):
                pass
    [found] = clock.table()
    assert found == StageTime("draft/backbone", 3, pytest.approx(3 * 0.005))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_device_is_timed():
    device = torch.device("cuda")
    with StageClock(CudaMarks(device)) as clock, stage("a"):
        torch.ones(1000, 1000, device=device) @ torch.ones(1000, 1000, device=device)
    assert clock.table()[0].seconds > 0
