"""The switches of the design in files: stored, honoured at load, refused where a layout has no word for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.folders import TRAINING, drop, edit_config, proposal, put, random_drafter
from tests.support.switches import VARIANTS

from dspine.checkpoint import export_drafter, export_specforge, load_drafter, save_drafter
from dspine.drafter.dspine import DSpine
from dspine.errors import CheckpointError
from dspine.target.model import Target


def fitting(switches: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in switches.items() if name not in ("num_hidden_layers", "target_layer_ids")}


STORED = {**VARIANTS, "confidence": {"confidence": True}}


@pytest.mark.parametrize("switches", STORED.values(), ids=STORED.keys())
def test_they_come_back_and_no_other_layout_takes_them(
    target: Target, tmp_path: Path, switches: dict[str, Any]
) -> None:
    drafter = random_drafter(target, **fitting(switches))
    save_drafter(drafter, tmp_path / "own", target=target, training=TRAINING, dtype=torch.float32)
    again = load_drafter(tmp_path / "own", target, packed=False)
    assert again.config == drafter.config
    assert again.config.switched == drafter.config.switched != {}
    for temperature in (0.0, 1.0):
        ours, theirs = proposal(drafter, temperature), proposal(again, temperature)
        assert torch.equal(ours.tokens, theirs.tokens)
        assert temperature == 0 or torch.equal(ours.probs, theirs.probs)
    for write in (
        lambda: export_drafter(tmp_path / "own", tmp_path / "out", target),
        lambda: export_specforge(drafter, tmp_path / "out", target),
    ):
        with pytest.raises(CheckpointError) as caught:
            write()
        assert all(name in str(caught.value) for name in drafter.config.switched)
        assert "SpecForge" in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_the_papers_drafter_names_none(own: Path, drafter: DSpine) -> None:
    config = json.loads((own / "config.json").read_text())
    assert config["is_causal"] is config["dflash_config"]["causal"] is True
    names = {"injected_layers", "predecessor", "reach", "gated", "refined", "confidence"}
    assert names.isdisjoint(config["dspine_config"])


def test_a_switch_that_the_weights_do_not_follow_is_refused(own: Path, target: Target) -> None:
    edit_config(own, put("dspine_config", "gated", value=False))
    with pytest.raises(CheckpointError, match=r"unexpected.*injection.bias"):
        load_drafter(own, target)


def test_sight_may_be_said_once(own: Path, target: Target) -> None:
    edit_config(own, drop("is_causal"))
    edit_config(own, put("dflash_config", "causal", value=False))
    loaded = load_drafter(own, target)
    assert loaded.config.switched == {"is_causal": False}
    assert not any(sight.causal for sight in loaded.form.sights)
