"""Drafters of the other methods in our own layout: there and back to the bit, and refusals that name the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.parallel import OWN, over
from tests.support.tiny_target import tiny_target

from dspine.checkpoint import CheckpointWarning, load_drafter, read_config, save_drafter
from dspine.drafter.registry import Network, kind_of
from dspine.errors import CheckpointError
from dspine.target.model import Target

IDS = torch.arange(0, 320, 4)


def saved(target: Target, kind: str, folder: Path, dtype: torch.dtype = torch.float32, **sizes: Any) -> Network:
    drafter = over(target, kind, **sizes)
    save_drafter(drafter, folder, target=target, training={"steps": 3}, dtype=dtype)
    return drafter


@pytest.mark.parametrize("ids", [None, IDS], ids=["full", "restricted"])
@pytest.mark.parametrize("kind", OWN)
def test_there_and_back(target: Target, tmp_path: Path, kind: str, ids: torch.Tensor | None) -> None:
    drafter = saved(target, kind, tmp_path / "d", draft_ids=ids)
    back = load_drafter(tmp_path / "d", target, packed=False)
    assert kind_of(back) == kind
    assert back.config == drafter.config
    assert (back.draft_ids is None) if ids is None else torch.equal(back.draft_ids, ids)
    theirs = back.state_dict()
    assert theirs.keys() == drafter.state_dict().keys()
    assert all(torch.equal(value, theirs[name]) for name, value in drafter.state_dict().items())
    assert not any(name.startswith("backbone") for name in load_file(tmp_path / "d" / "model.safetensors"))
    said = read_config(tmp_path / "d")
    assert (said.layout, said.training, said.target.head_sha256) == ("dspine", {"steps": 3}, target.head_digest)


@pytest.mark.parametrize("kind", OWN)
def test_a_confidence_comes_along_and_older_files_have_none(target: Target, tmp_path: Path, kind: str) -> None:
    drafter = saved(target, kind, tmp_path / "d", confidence=True)
    back = load_drafter(tmp_path / "d", target, packed=False)
    assert back.confident
    assert all(torch.equal(value, back.state_dict()[name]) for name, value in drafter.state_dict().items())
    if kind == "dspark":  # which always had the choice
        return
    saved(target, kind, tmp_path / "old", confidence=False)
    config = tmp_path / "old" / "config.json"
    said = json.loads(config.read_text())
    assert said["drafter_config"].pop("confidence") is False
    config.write_text(json.dumps(said))
    assert not load_drafter(tmp_path / "old", target).confident


def test_half_precision_is_rounded_once(target: Target, tmp_path: Path) -> None:
    drafter = saved(target, "domino", tmp_path / "d", torch.bfloat16)
    back = load_drafter(tmp_path / "d", target, packed=False)
    for name, value in drafter.state_dict().items():
        assert torch.equal(back.state_dict()[name], value.bfloat16().float())


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]
FAULTS: dict[str, tuple[Change, str]] = {
    "kind": (lambda c, t: c["dspine_format"].update(kind="other"), "kind is 'other', this program knows dflash"),
    "size missing": (lambda c, t: c["drafter_config"].pop("markov_rank"), "markov_rank is missing"),
    "size unknown": (lambda c, t: c["drafter_config"].update(gru=3), "gru is no size of a DSpark drafter"),
    "size of another type": (lambda c, t: c["drafter_config"].update(block_size=True), "block_size is True, not int"),
    "taps of another type": (lambda c, t: c["drafter_config"].update(target_layer_ids=[1.0]), "not a list of integers"),
    "size out of range": (lambda c, t: c["drafter_config"].update(markov_rank=0), "markov_rank is 0"),
    "size of another drafter": (lambda c, t: c["drafter_config"].update(markov_rank=9), "shapes do not fit"),
    "another head": (lambda c, t: c["dspine_format"]["target"].update(head_sha256="0" * 64), "it is another target"),
    "no target": (lambda c, t: c["dspine_format"].pop("target"), "no dspine_format.target"),
    "tensor missing": (lambda c, t: t.pop("markov_head.markov_w2.weight"), r"missing \(1\): markov_head.markov_w2"),
    "tensor not known": (lambda c, t: t.update(extra=torch.ones(1)), r"unexpected \(1\): extra"),
    "NaN": (lambda c, t: t["norm.weight"].fill_(torch.nan), "NaN or infinity in norm.weight"),
}


@pytest.fixture(scope="session")
def dspark(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dspark") / "d"
    saved(target, "dspark", folder)
    return folder


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_refused(target: Target, dspark: Path, tmp_path: Path, change: Change, message: str) -> None:
    config = json.loads((dspark / "config.json").read_text())
    tensors = load_file(dspark / "model.safetensors")
    change(config, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        load_drafter(tmp_path, target)


def test_unknown_keys_are_named(target: Target, dspark: Path, tmp_path: Path) -> None:
    config = json.loads((dspark / "config.json").read_text()) | {"note": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(dspark / "model.safetensors"), tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(CheckpointWarning, match="unknown keys .*: note"):
        load_drafter(tmp_path, target)


def test_what_is_for_dspine_alone_says_so(dspark: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a DSpark drafter, and this is for DSpine drafters"):
        _ = read_config(dspark).dspine


def test_a_target_of_other_sizes_is_refused(dspark: Path) -> None:
    with pytest.raises(CheckpointError, match="num_target_layers"):
        load_drafter(dspark, tiny_target(num_hidden_layers=5))
