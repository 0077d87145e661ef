"""`dspine calibrate`: temperatures beside the weights, read at load, refused where they do not belong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Run, assert_fault, parsed
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.checkpoint import drafter_digest, load_drafter, save_drafter
from dspine.checkpoint.temperatures import TEMPERATURES
from dspine.errors import CheckpointError


@pytest.fixture
def confident(tmp_path: Path) -> Path:
    target = tiny_target()
    drafter = tiny_drafter(target, lively=True, confidence=True)
    save_drafter(drafter, tmp_path / "d", target=target, training={}, dtype=torch.float32)
    return tmp_path / "d"


def test_temperatures_are_fitted_kept_and_read(run: Run, models: object, confident: Path) -> None:
    before = drafter_digest(confident)
    words = (
        "calibrate",
        models.target,
        confident,
        "--tasks",
        "gsm8k",
        "--split",
        "report",
        "--count",
        3,
        "-n",
        96,
        "--json",
    )
    found = parsed(run(*words))
    file = confident / TEMPERATURES
    kept = json.loads(file.read_text())
    assert found["file"] == str(file)
    assert kept["temperatures"] == found["temperatures"]
    assert len(kept["temperatures"]) == 3
    assert kept["ece_after"] <= kept["ece_before"]
    assert kept["num_samples"] > 100
    assert drafter_digest(confident) != before
    assert parsed(run(*words))["temperatures"] == found["temperatures"]  # fitted to what the head says itself

    target = tiny_target()
    drafter = load_drafter(confident, target)
    assert drafter.confidence_head.temperatures.tolist() == pytest.approx(kept["temperatures"])
    logits = torch.tensor([[0.5, -1.0, 2.0]])
    expected = (logits / torch.tensor(kept["temperatures"])).sigmoid()
    assert torch.allclose(drafter.confidence_head.chances(logits), expected)
    save_drafter(load_drafter(confident, target, packed=False), confident, target=target, training={})
    assert not file.exists()  # other weights would need other temperatures


@pytest.mark.parametrize("content", ["{", "{}", '{"temperatures": [1, 2]}', '{"temperatures": [1, 2, 0]}'])
def test_a_file_that_does_not_fit_is_refused(confident: Path, content: str) -> None:
    (confident / TEMPERATURES).write_text(content)
    with pytest.raises(CheckpointError, match="dspine calibrate"):
        load_drafter(confident, tiny_target())


def test_a_drafter_without_confidences_is_refused(run: Run, models: object, tmp_path: Path) -> None:
    words = ("calibrate", models.target, models.drafter, "--tasks", "gsm8k", "--split", "report", "--count", 1)
    assert_fault(run(*words), 2, "drafter.confidence: true")
    target = tiny_target()
    save_drafter(tiny_drafter(target), tmp_path / "d", target=target, training={})
    (tmp_path / "d" / TEMPERATURES).write_text('{"temperatures": [1, 1, 1]}')
    with pytest.raises(CheckpointError, match="gives no confidences"):
        load_drafter(tmp_path / "d", target)
