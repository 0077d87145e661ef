"""Which drafters a DSPINE server takes, and which commands the others are sent to; config.json and headers alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dspine.errors import CheckpointError, ServeError
from dspine.serve.adapter.draft import drafter_folder, is_dspine
from dspine.serve.sglang import draft
from dspine.target.builtin import shipped


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped("nano") / "drafter", tmp_path / "drafter"))


def edit(folder: Path, change) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def rewrite(folder: Path, keep) -> None:
    file = folder / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if keep(name)}, file)


def plain_dflash(folder: Path) -> None:
    rewrite(folder, lambda name: not name.startswith(("injection.", "transfer_")))
    edit(folder, lambda config: (config.pop("dspine_config"), config.update(architectures=["DFlashDraftModel"])))


def official(folder: Path) -> None:
    def mark(config):
        config["architectures"] = ["DFlashDraftModel"]
        config["dflash_config"]["selected_prefix_code_bridge"] = {"rank": 64}

    edit(folder, mark)


def test_a_drafter_of_ours_is_opened(folder):
    assert draft.open_draft(folder).config.dspine.block_size == 8
    assert drafter_folder(str(folder), None) == folder
    assert is_dspine(str(folder), None)


def test_a_plain_dflash_drafter_is_sent_to_its_own_algorithm(folder):
    plain_dflash(folder)
    with pytest.raises(ServeError, match="holds a DFlash drafter") as caught:
        draft.open_draft(folder)
    assert f"--speculative-algorithm DFLASH --speculative-draft-model-path {folder}" in caught.value.fix
    assert not is_dspine(str(folder), None)


def test_an_official_drafter_is_recognised_and_its_tensors_listed(folder):
    official(folder)
    assert is_dspine(str(folder), None)
    with pytest.raises(CheckpointError, match="official layout") as caught:
        draft.open_draft(folder)
    assert "layers.{i}.self_attn.q_proj.weight BF16 [128, 128] x2" in caught.value.what


def test_another_architecture_is_refused_since_sglang_would_take_another_network(folder):
    edit(folder, lambda config: config.update(architectures=["DFlashDraftModel"]))
    with pytest.raises(ServeError, match="architectures"):
        draft.open_draft(folder)


def test_a_drafter_of_another_design_is_refused_by_its_switches(folder):
    edit(folder, lambda config: config["dspine_config"].update(predecessor="none"))
    with pytest.raises(ServeError, match="predecessor=none"):
        draft.open_draft(folder)


def test_a_missing_tensor_is_refused_by_name_before_anything_is_loaded(folder):
    rewrite(folder, lambda name: name != "injection.bias")
    with pytest.raises(CheckpointError, match=r"injection\.bias"):
        draft.open_draft(folder)
