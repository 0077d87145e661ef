"""From our layout to SpecForge's: the same drafter, bit for bit, with its facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoint.folders import TRAINING, edit_config, put, random_drafter, same_proposal, snapshot, to_split
from tests.support.tiny_target import tiny_target

from dspine.checkpoint import export_drafter, load_drafter, read_config, save_drafter
from dspine.drafter.dspine import DSpine
from dspine.errors import CheckpointError
from dspine.target.model import Target


def test_it_proposes_the_same(own: Path, target: Target, drafter: DSpine, tmp_path: Path) -> None:
    export_drafter(own, tmp_path / "out", target)
    assert read_config(tmp_path / "out").layout == "SpecForge"
    assert same_proposal(drafter, load_drafter(tmp_path / "out", target, packed=False))
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["transfer_codes"], drafter.codes)
    assert not {"transfer_mean", "transfer_basis"} & written.keys()


def test_the_facts_go_along(own: Path, target: Target, tmp_path: Path) -> None:
    edit_config(own, put("dspine_config", "replacement_probability", value=0.25))
    edit_config(own, put("dspine_format", "target", "thinking", value=True))
    edit_config(own, put("mine", value="kept"))
    with pytest.warns(UserWarning, match="unknown keys"):
        export_drafter(own, tmp_path / "out", target)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (own, tmp_path / "out"))
    assert after["dspine_config"] == before["dspine_config"]
    assert after["mine"] == "kept"
    assert after["dspine_format"]["target"]["thinking"] is True
    assert TRAINING.items() <= after["dspine_format"]["training"].items()


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_weights_keep_their_bits_and_their_format(target: Target, tmp_path: Path, stored: torch.dtype) -> None:
    save_drafter(random_drafter(target), tmp_path / "own", target=target, training=TRAINING, dtype=stored)
    export_drafter(tmp_path / "own", tmp_path / "out", target)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("own", "out"))
    trained = before.keys() & after.keys() - {"transfer_ready"}
    assert len(trained) > 20
    assert all(after[name].dtype == stored and torch.equal(before[name], after[name]) for name in trained)
    export_drafter(tmp_path / "own", tmp_path / "asked", target, dtype=torch.float32)
    assert load_file(tmp_path / "asked" / "model.safetensors")["fc.weight"].dtype == torch.float32


def test_a_draft_vocabulary_goes_along(target: Target, tmp_path: Path) -> None:
    network = random_drafter(target, torch.arange(0, 320, 2))
    save_drafter(network, tmp_path / "own", target=target, training=TRAINING, dtype=torch.float32)
    export_drafter(tmp_path / "own", tmp_path / "out", target)
    assert same_proposal(network, load_drafter(tmp_path / "out", target, packed=False))


def test_the_split_layout_too(specforge: Path, drafter: DSpine, target: Target, tmp_path: Path) -> None:
    to_split(specforge)
    with pytest.warns(UserWarning, match="blocks of 16"):
        export_drafter(specforge, tmp_path / "out", target)
    assert read_config(tmp_path / "out").drafter.block_size == 16
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["transfer_codes"], drafter.codes)


def test_what_is_refused_leaves_everything_as_it_was(
    own: Path, specforge: Path, target: Target, tmp_path: Path
) -> None:
    before = snapshot(own)
    with pytest.raises(CheckpointError, match="in SpecForge's layout already"):
        export_drafter(specforge, tmp_path / "out", target)
    for taken in (own, own / "config.json"):
        with pytest.raises(CheckpointError, match="exists\nName a new or an empty folder"):
            export_drafter(own, taken, target)
    with pytest.raises(CheckpointError, match="no such folder"):
        export_drafter(tmp_path / "none", tmp_path / "out", target)
    with pytest.raises(CheckpointError, match="LM head"):
        export_drafter(own, tmp_path / "out", tiny_target(seed=1))
    assert snapshot(own) == before
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    export_drafter(own, tmp_path / "empty", target)
