"""Our drafters in SpecForge's and speculators' layouts: there and back to the bit, and what those cannot hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoint.published import FOLDERS, IDS
from tests.support.parallel import over
from tests.support.tiny_target import tiny_target

from dspine.checkpoint import LayoutName, export_drafter, load_drafter, read_config, save_drafter
from dspine.checkpoint.temperatures import TEMPERATURES, write_temperatures
from dspine.drafter.dspine import DSpine
from dspine.drafter.registry import confidence_head_of, kind_of
from dspine.errors import CheckpointError
from dspine.target.model import Target

SPECFORGE, SPECULATORS, OURS = LayoutName.specforge, LayoutName.speculators, LayoutName.dspine
SLIDING: dict[str, Any] = {"sliding_layers": (1,), "sliding_window": 7}
KINDS: dict[str, tuple[LayoutName, str, dict[str, Any]]] = {
    "SpecForge, DFlash": (SPECFORGE, "dflash", {**SLIDING, "is_causal": None}),
    "SpecForge, DFlash of next tokens": (SPECFORGE, "dflash", {"logits_start": 0, "is_causal": True}),
    "SpecForge, Domino": (SPECFORGE, "domino", {}),
    "SpecForge, Domino, not shifted": (SPECFORGE, "domino", {"logits_start": 1}),
    "SpecForge, DSpark": (SPECFORGE, "dspark", {"markov_head": "rnn", "confidence_with_markov": False}),
    "SpecForge, EAGLE-3": (SPECFORGE, "eagle3", {"draft_ids": IDS}),
    "speculators, DFlash": (SPECULATORS, "dflash", {**SLIDING, "draft_ids": IDS}),
    "speculators, DFlash of next tokens": (SPECULATORS, "dflash", {**SLIDING, "logits_start": 0, "is_causal": None}),
    "speculators, DFlash2": (SPECULATORS, "dflash2", {}),
    "speculators, DSpark": (SPECULATORS, "dspark", {"markov_head": "gated", "draft_ids": IDS}),
    "speculators, DSpark without confidence": (SPECULATORS, "dspark", {"confidence": False}),
    "speculators, EAGLE-3": (SPECULATORS, "eagle3", {"draft_ids": IDS}),
    "speculators, EAGLE-3 with norms": (SPECULATORS, "eagle3", {"qk_norm": True, "block_size": 4}),
}


@pytest.mark.parametrize(("layout", "kind", "sizes"), KINDS.values(), ids=KINDS.keys())
def test_there_and_back(target: Target, tmp_path: Path, layout: LayoutName, kind: str, sizes: dict[str, Any]) -> None:
    drafter = over(target, kind, **sizes)
    save_drafter(drafter, tmp_path / "own", target=target, training={"steps": 3}, dtype=torch.float32)
    export_drafter(tmp_path / "own", tmp_path / "out", target, layout)
    back = load_drafter(tmp_path / "out", target, packed=False)
    assert kind_of(back) == kind
    wanted = vars(drafter.config) | ({"mask_token_id": 0} if kind == "eagle3" else {})
    assert vars(back.config) == wanted
    assert (back.draft_ids is None) if drafter.draft_ids is None else torch.equal(back.draft_ids, IDS)
    state = back.state_dict()
    assert state.keys() == drafter.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in drafter.state_dict().items())
    said = read_config(tmp_path / "out")
    assert said.training.items() >= {"steps": 3}.items()
    assert said.target is not None
    assert (said.target.head_sha256, said.unknown) == (target.head_digest, {})
    export_drafter(tmp_path / "out", tmp_path / "again", target, OURS)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("own", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_calibration_goes_along(target: Target, tmp_path: Path) -> None:
    drafter = over(target, "dspark")
    save_drafter(drafter, tmp_path / "own", target=target, training={})
    kept = tuple(1 + place / 8 for place in range(drafter.candidates))
    write_temperatures(tmp_path / "own", kept, {"num_samples": 7})
    export_drafter(tmp_path / "own", tmp_path / "out", target, SPECULATORS)
    assert confidence_head_of(load_drafter(tmp_path / "out", target)).temperatures.tolist() == pytest.approx(kept)
    assert json.loads((tmp_path / "out" / TEMPERATURES).read_text())["num_samples"] == 7


def test_the_targets_head_where_a_layout_wants_one(target: Target, tmp_path: Path) -> None:
    drafter = over(target, "eagle3", own_head=False, draft_ids=IDS)
    save_drafter(drafter, tmp_path / "own", target=target, training={}, dtype=torch.float32)
    for layout in (SPECFORGE, SPECULATORS):
        export_drafter(tmp_path / "own", tmp_path / layout, target, layout)
        written = load_file(tmp_path / layout / "model.safetensors")
        assert torch.equal(written["lm_head.weight"], target.head_weight[IDS])
        assert torch.equal(written["d2t"] + torch.arange(len(IDS)), IDS)
        assert torch.equal(written["t2d"].nonzero().flatten(), IDS)


def test_names_and_fields_of_specforge(target: Target, tmp_path: Path) -> None:
    save_drafter(over(target, "domino"), tmp_path / "own", target=target, training={})
    export_drafter(tmp_path / "own", tmp_path / "out", target)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = FOLDERS["Domino, shifted"](target)
    assert theirs.config.keys() - config.keys() <= {"emb_dim", "initializer_range", "use_cache", "max_window_layers"}
    assert theirs.config["dflash_config"].keys() == config["dflash_config"].keys()
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == theirs.tensors.keys()


def test_names_and_fields_of_speculators(target: Target, tmp_path: Path) -> None:
    drafter = over(target, "dspark", draft_ids=IDS)
    save_drafter(drafter, tmp_path / "own", target=target, training={})
    export_drafter(tmp_path / "own", tmp_path / "out", target, SPECULATORS)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = FOLDERS["speculators DSpark"](target)
    assert theirs.config.keys() - config.keys() == {"target_hidden_size"}
    assert config["aux_hidden_state_layer_ids"] == [1, 3]  # of the drafter's (0, 2)
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == theirs.tensors.keys()


CANNOT: dict[str, tuple[LayoutName, str, dict[str, Any], str]] = {
    "DFlash2": (SPECFORGE, "dflash2", {}, "a DFlash2 drafter\n.*--layout speculators"),
    "part of the vocabulary": (SPECFORGE, "dspark", {"draft_ids": IDS}, "restricted .*\n.*--layout speculators"),
    "norms": (SPECFORGE, "eagle3", {"qk_norm": True}, "norms .*\n.*--layout speculators"),
    "first row": (SPECFORGE, "dspark", {"logits_start": 1}, "first row"),
    "Domino": (SPECULATORS, "domino", {}, "a Domino drafter\n.*--layout specforge"),
    "part of DFlash2's vocabulary": (SPECULATORS, "dflash2", {"draft_ids": IDS}, "restricted .*\n.*--layout dspine"),
    "causal": (SPECULATORS, "dflash", {"is_causal": True}, "earlier rows alone\n.*--layout specforge"),
    "confidence": (SPECFORGE, "dflash", {"confidence": True}, "confidence head of a drafter that is not DSpark's"),
    "DFlash's next": (SPECFORGE, "dflash", {"logits_start": 0, "confidence": True}, "confidence head"),
    "EAGLE-3's confidence": (SPECFORGE, "eagle3", {"confidence": True}, "confidence head"),
    "DFlash2's confidence": (SPECULATORS, "dflash2", {"confidence": True}, "confidence head"),
    "itself": (OURS, "dflash", {}, "in dspine's layout already"),
}


@pytest.mark.parametrize(("layout", "kind", "sizes", "message"), CANNOT.values(), ids=CANNOT.keys())
def test_what_a_layout_cannot_hold(
    target: Target, tmp_path: Path, layout: LayoutName, kind: str, sizes: dict[str, Any], message: str
) -> None:
    save_drafter(over(target, kind, **sizes), tmp_path / "own", target=target, training={})
    with pytest.raises(CheckpointError, match=message):
        export_drafter(tmp_path / "own", tmp_path / "out", target, layout)
    assert not (tmp_path / "out").exists()


def test_a_dspine_drafter(own: Path, specforge: Path, target: Target, drafter: DSpine, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot hold a DSpine drafter\n.*--layout specforge"):
        export_drafter(own, tmp_path / "out", target, SPECULATORS)
    with pytest.raises(CheckpointError, match="basis of its transfer space is not in SpecForge's files"):
        export_drafter(specforge, tmp_path / "out", target, OURS)


def test_taps_that_the_target_tells_are_written_down(tmp_path: Path) -> None:
    deep = tiny_target(num_hidden_layers=9)
    written = FOLDERS["SpecForge EAGLE-3"](deep)
    del written.config["eagle_config"]
    export_drafter(written.write(tmp_path / "d"), tmp_path / "out", deep, OURS)
    assert read_config(tmp_path / "out").drafter.target_layer_ids == (1, 3, 5)  # 1, N/2 - 1, N - 4


@pytest.mark.parametrize(
    ("sizes", "ahead"),
    [({}, True), ({"is_causal": False}, True), (SLIDING, False), ({**SLIDING, "is_causal": False}, True)],
)
def test_rows_that_see_ahead_are_said_to_even_without_sliding_layers(
    target: Target, tmp_path: Path, sizes: dict[str, Any], ahead: bool
) -> None:
    drafter = over(target, "dflash", **{"is_causal": None, **sizes})
    save_drafter(drafter, tmp_path / "own", target=target, training={}, dtype=torch.float32)
    export_drafter(tmp_path / "own", tmp_path / "out", target, SPECULATORS)
    # vLLM takes the flag for the whole block: false would hide rows from a drafter that was trained to see them.
    assert json.loads((tmp_path / "out" / "config.json").read_text())["sliding_window_non_causal"] is ahead
