"""What a recording must do to be used: replay what was run. The recording of CUDA graphs itself needs a GPU."""

from __future__ import annotations

import pytest
import torch

from dspine.errors import ConfigError
from dspine.kernels.recording import CaptureError, CudaRecorder, Recording, alike, read_capture

NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([100.0, 1.0]), torch.tensor([100.5, 1.5]), True),
        (torch.tensor([100.0, 1.0]), torch.tensor([100.0, 4.0]), False),
        (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]), True),
        (torch.tensor([NAN, 1.0]), torch.tensor([0.0, 1.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float16), False),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), False),
        (torch.empty(0), torch.empty(0), True),
    ],
)
def test_numbers_of_a_replay(one, other, same):
    assert alike(one, other) is same


def recorder(monkeypatch, replayed):
    """A recorder whose graph, replayed, leaves `replayed` where the run gave 1, 2; or fails with it."""

    def recorded(self, run):
        if isinstance(replayed, Exception):
            raise replayed
        results = [torch.zeros(2)]
        return run(), Recording(lambda: results[0].copy_(torch.tensor(replayed)), results)

    monkeypatch.setattr(CudaRecorder, "_recorded", recorded)
    return CudaRecorder()


def test_a_graph_is_used_only_if_its_replay_gives_what_running_gave(monkeypatch):
    def run():
        return [torch.tensor([1.0, 2.0])]

    [result] = recorder(monkeypatch, [1.0, 2.0]).record(run).results
    assert result.tolist() == [1.0, 2.0]
    with pytest.raises(CaptureError, match="a replayed CUDA graph differs"):
        recorder(monkeypatch, [1.0, 0.0]).record(run)
    with pytest.raises(CaptureError, match="cannot be recorded as a CUDA graph: operation not permitted"):
        recorder(monkeypatch, RuntimeError("operation not permitted")).record(run)


def test_choices():
    assert [read_capture(choice) for choice in ("auto", "on", "off")] == ["auto", "on", "off"]
    with pytest.raises(ConfigError, match="'yes' is no choice"):
        read_capture("yes")
