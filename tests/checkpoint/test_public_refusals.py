"""What the readers of public layouts refuse: the field or tensor, what it was, and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.published import FOLDERS, Folder
from tests.support.tiny_target import EOS

from dspine.checkpoint import load_drafter
from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public.choose import normal_form
from dspine.checkpoint.weights import stored
from dspine.errors import CheckpointError
from dspine.target.model import Target

Change = Callable[[Folder], object]


def inner(section: str, **fields: Any) -> Change:
    return lambda folder: folder.config[section].update(fields)


def top(**fields: Any) -> Change:
    return lambda folder: folder.config.update(fields)


def without(section: str, key: str) -> Change:
    return lambda folder: folder.config[section].pop(key)


def tensor(name: str, value: torch.Tensor | None) -> Change:
    return lambda folder: folder.tensors.pop(name) if value is None else folder.tensors.update({name: value})


D = "dflash_config"
CASES: dict[str, tuple[str, Change, str]] = {
    "taps missing": ("z-lab DFlash", without(D, "target_layer_ids"), "target_layer_ids is missing"),
    "taps twice": ("z-lab DFlash", top(target_layer_ids=[0, 1, 2]), "name different decoder layers"),
    "taps of the last layer": ("z-lab DFlash", inner(D, target_layer_ids=[1, 2, 5]), r"\[1, 2, 5\].*in 0..4 for a t"),
    "taps of the last layer, by index": (
        "speculators DFlash",
        top(aux_hidden_state_layer_ids=[2, 3, 6]),
        r"aux_hidden_state_layer_ids is \[2, 3, 6\]: ids are distinct and in 1..5",
    ),
    "taps of the embedding": ("DeepSpec DSpark", top(target_layer_ids=[-1, 1, 2]), "-1 is the embedding's output"),
    "fewer taps": ("z-lab DFlash", inner(D, target_layer_ids=[1, 2]), "fc.weight takes in 192\nList all 3"),
    "mask missing": ("z-lab DFlash", without(D, "mask_token_id"), "mask_token_id is missing"),
    "mask that ends": ("z-lab DFlash", inner(D, mask_token_id=EOS), "the target's eos token"),
    "rope missing": ("z-lab DFlash", lambda f: f.config.pop("rope_theta"), "rope_parameters.rope_theta too"),
    "rope twice": ("z-lab DFlash", top(rope_parameters={"rope_theta": 1.0}), "said twice, differently"),
    "rope scaled": ("z-lab DFlash", top(rope_scaling={"rope_type": "yarn"}), "rope_scaling is .*yarn.*needs None"),
    "rope of another layout": ("z-lab DFlash", top(is_neox_style=False), "is_neox_style is False"),
    "biases": ("speculators DSpark", inner("transformer_layer_config", attention_bias=True), "attention_bias is True"),
    "soft cap": ("z-lab DFlash2", inner(D, final_logit_softcapping=30.0), "final_logit_softcapping is 30.0"),
    "sink": ("SpecForge DSpark", inner(D, attention_sink_bias=True), "attention_sink_bias is True"),
    "another width": (
        "speculators DFlash",
        top(target_hidden_size=128),
        "target_hidden_size is 128, and hidden_size 64",
    ),
    "window missing": (
        "z-lab DFlash, newer",
        lambda f: f.config.update(sliding_window=None),
        "sliding_window is missing",
    ),
    "layer types": ("z-lab DFlash", top(layer_types=["chunked_attention"] * 2), "each full_attention or sliding_att"),
    "shift not said": ("Domino, shifted", without(D, "shift_label"), "shift_label is missing.*\nSet it as in training"),
    "prefix": ("Domino, shifted", inner(D, pure_draft_prefix_len=0), "pure_draft_prefix_len is 0"),
    "confidence alone": ("DeepSpec DFlash", top(enable_confidence_head=True), "confidence without a Markov head"),
    "head of another kind": ("DeepSpec DSpark", top(markov_head_type="mlp"), "markov_head is 'mlp'"),
    "another method": (
        "speculators DFlash",
        top(speculators_model_type="peagle"),
        "speculators_model_type is 'peagle'; .*\nServe it where it runs: vllm serve TARGET",
    ),
    "normed output, fed": ("speculators EAGLE-3", top(norm_output=True), "norm_output is True"),
    "raw output, scored": ("SpecForge EAGLE-3", top(norm_output=False), "norm_output is False"),
    "norms before fc": ("speculators EAGLE-3", top(fc_norm=True), "fc_norm is True"),
    "layers": ("DeepSpec EAGLE-3", top(num_hidden_layers=2, layer_types=["full_attention"] * 2), "has one layer"),
    "tensor missing": ("z-lab DFlash", tensor("norm.weight", None), r"z-lab layout.*\nmissing \(1\): norm.weight\n"),
    "tensor not known": ("z-lab DFlash", tensor("mask_hidden", torch.ones(1)), r"unexpected \(1\): mask_hidden"),
    "tensor twice": ("z-lab DFlash", tensor("model.norm.weight", torch.ones(64)), "are both norm.weight"),
    "tensor of another width": ("z-lab DFlash", tensor("norm.weight", torch.ones(63)), r"is \[63\], config.json asks"),
    "fused": ("z-lab DFlash", tensor("layers.0.self_attn.qkv_proj.weight", torch.ones(1)), "qkv_proj"),
    "codebook missing": (
        "speculators DFlash2",
        tensor("candidate_selector.successor_codebook", None),
        r"missing \(1\): candidate_selector.successor_codebook",
    ),
    "quantised": ("z-lab DFlash", tensor("norm.weight", torch.ones(64, dtype=torch.int8)), "quantised"),
    "poisoned": ("Domino, shifted", lambda f: f.tensors["norm.weight"].fill_(torch.nan), "NaN or infinity in norm"),
    "offsets of floats": ("SpecForge EAGLE-3", tensor("d2t", torch.zeros(100)), "d2t F32.*is no list of I64"),
    "flags without offsets": ("SpecForge EAGLE-3", tensor("d2t", None), "t2d without d2t"),
    "head of other rows": (
        "SpecForge EAGLE-3",
        tensor("lm_head.weight", torch.ones(99, 64)),
        r"lm_head.weight is \[99",
    ),
    "another embedding": ("SpecForge EAGLE-3", tensor("embed_tokens.weight", torch.ones(320, 64)), "up to"),
}


@pytest.mark.parametrize(("name", "change", "message"), CASES.values(), ids=CASES.keys())
def test_a_fault_is_refused(target: Target, tmp_path: Path, name: str, change: Change, message: str) -> None:
    written = FOLDERS[name](target)
    change(written)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_drafter(written.write(tmp_path / "d"), target)
    assert str(tmp_path / "d") in caught.value.what
    assert caught.value.fix


def test_a_mask_embedding_of_its_own(target: Target, tmp_path: Path) -> None:
    folder = FOLDERS["z-lab DFlash"](target).write(tmp_path / "d")
    (folder / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=f"mask_embedding.pt replaces.*\n.*--speculative-draft-model-path {folder}"
    ):
        load_drafter(folder, target)


def _paths(config: dict[str, Any], *before: str) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from _paths(value, *before, key)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wrong_value_is_never_a_crash(target: Target, tmp_path: Path, name: str) -> None:
    written = FOLDERS[name](target)
    folder, refused = written.write(tmp_path / "d"), 0
    tensors = stored(folder)
    for path in _paths(written.config):
        for value in (None, -1, 1.5, "x", [], ["x"], [[]], {"x": 1}):
            spoilt = deepcopy(written.config)
            place = spoilt
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            refused += _refused(Contents(folder, spoilt, tensors))
    assert refused > 60


def _refused(contents: Contents) -> bool:
    try:
        normal_form(contents, None)
    except CheckpointError as error:
        return bool(error.fix)
    return False
