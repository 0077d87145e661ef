"""What the loader refuses: each case names what is wrong, where, and the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.folders import drop, edit_config, edit_tensors, put, random_drafter, to_split
from tests.support.tiny_target import BOS, CHAT_TEMPLATE, EOS, IM_START, MASK, PAD, THINKING_TEMPLATE, tiny_target
from torch import Tensor

from dspine.checkpoint import CheckpointWarning, check_mask_token, keys, load_drafter, read_config, save_drafter
from dspine.checkpoint.record import parse, read_json
from dspine.errors import CheckpointError
from dspine.target.model import Target

Change = Callable[[dict[str, Any]], None]


def refused(folder: Path, target: Target, *words: str) -> str:
    """The message of the refusal, which has a fix and says all these words."""
    with pytest.raises(CheckpointError) as caught:
        load_drafter(folder, target)
    assert caught.value.fix
    text = str(caught.value)
    for word in words:
        assert word in text, f"{word!r} not in: {text}"
    return text


# ------------------------------------------------------------------ config.json alone

TAPS = ("dflash_config", "target_layer_ids")
MASK_ID = ("dflash_config", "mask_token_id")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop(*TAPS), ["target_layer_ids is missing"]),
        (put(*TAPS, value=[1, 3, -1]), ["target_layer_ids", "-1", "0..4"]),
        (put(*TAPS, value=[1, 3, 5]), ["target_layer_ids", "0..4", "the last layer is never tapped"]),
        (put(*TAPS, value=[1, 3, 6]), ["target_layer_ids", "0..4"]),
        (put(*TAPS, value=[1, 3, 3]), ["target_layer_ids", "distinct"]),
        (put(*TAPS, value=[]), ["target_layer_ids is []", "not a list of layer ids"]),
        (put(*TAPS, value="1,3"), ["target_layer_ids", "not a list of layer ids"]),
        (put(*TAPS, value=[1, 3]), ["target_layer_ids names 2 layers", "fc.weight takes in 192", "all 3 layers"]),
        (put(*TAPS, value=[0, 1, 3, 4]), ["target_layer_ids names 4 layers", "fc.weight takes in 192"]),
        (drop("dspine_format", "target"), ["no dspine_format.target", "which LM head"]),
        (drop(*MASK_ID), ["mask_token_id is missing"]),
        (put(*MASK_ID, value=None), ["mask_token_id is missing"]),
        (put(*MASK_ID, value=-1), ["mask_token_id is -1"]),
        (put(*MASK_ID, value=PAD), ["mask_token_id", "pad token", "unused special token"]),
        (put(*MASK_ID, value=EOS), ["mask_token_id", "eos token"]),
        (put(*MASK_ID, value=BOS), ["mask_token_id", "bos token"]),
        (put(*MASK_ID, value=320), ["mask_token_id 320", "0..319"]),
        (put(*MASK_ID, value=IM_START), ["mask_token_id", "chat template"]),
        (put("hidden_size", value=32), ["hidden_size is 32", "is 64"]),
        (put("hidden_size", value="64"), ["hidden_size is '64'"]),
        (put("vocab_size", value=352), ["vocab_size is 352", "LM-head rows", "is 320"]),
        (put("num_target_layers", value=7), ["num_target_layers is 7", "is 6"]),
        (drop("rope_theta"), ["rope_theta is missing", "rope_parameters.rope_theta"]),
        (put("rope_parameters", value={"rope_theta": 10.0}), ["rope_theta", "twice"]),
        (put("rope_scaling", value={"rope_type": "yarn", "factor": 4.0}), ["rope_scaling", "yarn"]),
        (
            put("rope_parameters", value={"rope_type": "yarn", "rope_theta": 20000.0}),
            ["rope_parameters.rope_type is 'yarn'"],
        ),
        (put("layer_types", value=["full_attention", "sliding_attention"]), ["layer_types", "sliding_attention"]),
        (put("layer_types", value=["full_attention"]), ["layer_types", "2 layers"]),
        (put("use_sliding_window", value=True), ["use_sliding_window is True"]),
        (put("is_causal", value=False), ["is_causal is said twice"]),
        (put("dflash_config", "causal", value=False), ["is_causal is said twice", "'dflash_config.causal': False"]),
        (put("dspine_config", "reach", value=4), ["reach is 4", "1 to 3"]),
        (put("dspine_config", "predecessor", value="correct"), ["predecessor is 'correct'"]),
        (put("dspine_config", "injected_layers", value=[0]), ["leaves out the last layer"]),
        (put("dspine_config", "injected_layers", value=[2]), ["injected_layers [2] of 2 draft layers"]),
        (put("dspine_config", "gated", value=1), ["gated is 1, not bool"]),
        (put("model_type", value="llama"), ["model_type is 'llama'"]),
        (put("dflash_config", "input_embedding_scale", value=8.0), ["input_embedding_scale"]),
        (put("block_size", value=1), ["block_size is 1"]),
        (put("num_attention_heads", value=3), ["attention heads", "config.json"]),
        (put("dspine_config", value=[]), ["dspine_config", "not an object"]),
        (drop("dspine_config", "top_k"), ["dspine_config.top_k is missing"]),
        (put("dspine_config", "transfer_rank", value=8), ["injection.readouts.0.weight is [16, 64]", "[8, 64]"]),
        (put("dspine_format", "version", value=2), ["dspine_format.version is 2", "Update dspine"]),
        (put("dspine_format", "target", "head_sha256", value="0" * 64), ["digest", "tiny-qwen3", "--target"]),
    ],
)
def test_config(change: Change, words: list[str], own: Path, target: Target) -> None:
    edit_config(own, change)
    refused(own, target, str(own), *words)


def _paths(config: dict[str, Any], *before: str) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict) and key != "training":
            yield from _paths(value, *before, key)


# What another value than the published one changes nothing of.
FREE = {
    *("architectures", "auto_map", "attention_dropout", "tie_word_embeddings", "sliding_window", "dtype"),
    *("bos_token_id", "eos_token_id", "written_by", "layout"),
    *keys.OBJECTIVE,
}


def test_a_wrong_value_of_any_other_key_is_a_refusal(own: Path) -> None:
    config = read_json(own)
    config["rope_parameters"] = {"rope_theta": config["rope_theta"], "rope_type": "default"}
    for path in _paths(config):
        for value in (-1, 1.5, "x", [], ["x"], [[]], {"x": 1}):
            spoilt = deepcopy(config)
            put(*path, value=value)(spoilt)
            fault = _fault(spoilt, own)
            if fault is not None:
                assert fault.fix
                assert str(own) in fault.what
            else:
                fine = isinstance(value, dict) and path[-1] in ("training", "dspine_format", "rope_parameters")
                fine |= isinstance(value, str) and path[-1].endswith(("name", "sha256"))
                fine |= isinstance(value, float) and path[-1] == "rms_norm_eps"
                fine |= not value and path[-1] == "draft_vocabulary"
                assert fine or FREE & set(path), (path, value)


def _fault(config: dict[str, Any], folder: Path) -> CheckpointError | None:
    try:
        parse(config, folder, "dspine")
    except CheckpointError as error:
        return error
    return None


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_config_that_is_no_json_object(content: str, own: Path, target: Target) -> None:
    (own / "config.json").write_text(content)
    refused(own, target, "config.json", "Fetch the file again")


def test_a_sliding_window_without_layer_types(own: Path, target: Target) -> None:
    edit_config(own, drop("layer_types"))
    load_drafter(own, target)
    edit_config(own, put("sliding_window", value=8))
    refused(own, target, "sliding_window is 8")


def test_float16_is_named_as_the_cause_of_another_digest(own: Path, target: Target) -> None:
    half = tiny_target(dtype=torch.float16)
    message = refused(own, half, "LM head of digest", "loaded in float16", "float32 or bfloat16 (--dtype)")
    assert "--target" not in message
    assert load_drafter(own, tiny_target(dtype=torch.bfloat16)).config.hidden_size == 64


# ------------------------------------------------------------------ tensors


def _rename(tensors: dict[str, Tensor]) -> None:
    tensors["injection.receivergate.weight"] = tensors.pop("injection.receiver_gate.weight")
    del tensors["injection.bias"]
    tensors["selected_prefix_code_bridge.weight"] = torch.zeros(3)


@pytest.mark.parametrize(("layout", "title"), [("own", "dspine"), ("specforge", "SpecForge")])
def test_names_are_strict(layout: str, title: str, target: Target, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(layout)
    edit_tensors(folder, _rename)
    text = refused(folder, target, f"the {title} layout")
    missing, unexpected = text.split("unexpected")
    assert "missing (2): injection.bias, injection.receiver_gate.weight" in missing
    assert "(2): injection.receivergate.weight, selected_prefix_code_bridge.weight" in unexpected


def test_one_name_too_many_or_too_few(own: Path, target: Target) -> None:
    edit_tensors(own, lambda t: t.update({"lm_head.weight": torch.zeros(2)}))
    refused(own, target, "missing (0): -", "unexpected (1): lm_head.weight")
    edit_tensors(own, lambda t: [t.pop(name) for name in ("lm_head.weight", "layers.1.self_attn.q_norm.weight")])
    refused(own, target, "missing (1): layers.1.self_attn.q_norm.weight", "unexpected (0): -")


def test_codes_of_another_vocabulary(specforge: Path, target: Target) -> None:
    edit_tensors(specforge, lambda t: t.update(transfer_codes=t["transfer_codes"][:300].clone()))
    refused(specforge, target, "transfer_codes is [300, 16]", "[320, 16]")


def test_scaled_codes(specforge: Path, target: Target) -> None:
    edit_tensors(specforge, lambda t: t.update(transfer_codes=4 * t["transfer_codes"]))
    refused(specforge, target, "transfer_codes", "unit norm")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_quantised_weights(dtype: torch.dtype, own: Path, target: Target) -> None:
    edit_tensors(own, lambda t: t.update({"fc.weight": t["fc.weight"].to(dtype)}))
    refused(own, target, "fc.weight", "quantised", "unquantised checkpoint")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value: float, own: Path, target: Target) -> None:
    edit_tensors(own, lambda t: t["norm.weight"].__setitem__(3, value))
    refused(own, target, str(own), "NaN", "norm.weight")


def test_transfer_ready_false(own: Path, specforge: Path, target: Target) -> None:
    for folder in (own, specforge):
        edit_tensors(folder, lambda t: t.update(transfer_ready=torch.tensor(False)))
        refused(folder, target, "transfer_ready is false", "never trained")


def test_no_codes_and_no_basis(own: Path, target: Target) -> None:
    edit_tensors(own, lambda t: [t.pop(name) for name in list(t) if name.startswith("transfer_")])
    refused(own, target, "without its transfer space", "eigendecomposition")


def test_basis_in_half_precision(own: Path, target: Target) -> None:
    edit_tensors(own, lambda t: t.update(transfer_basis=t["transfer_basis"].bfloat16()))
    refused(own, target, "transfer_basis", "float32")


def test_the_head_of_another_target(own: Path) -> None:
    refused(own, tiny_target(seed=1), "digest", "It was trained for tiny-qwen3")


def test_truncated_weights(own: Path, target: Target) -> None:
    path = own / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(own, target, "model.safetensors", "damaged or incomplete")


def test_pickled_weights(own: Path, target: Target) -> None:
    (own / "model.safetensors").rename(own / "pytorch_model.bin")
    refused(own, target, "pytorch_model.bin", "pickle")


def test_no_weights(own: Path, target: Target) -> None:
    (own / "model.safetensors").unlink()
    refused(own, target, "no model.safetensors")


def test_an_index_that_leads_out_of_the_folder(own: Path, target: Target) -> None:
    (own / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "../elsewhere.safetensors"}}')
    refused(own, target, "elsewhere", "out of the folder")


# ------------------------------------------------------------------ draft vocabulary


@pytest.fixture
def restricted(target: Target, tmp_path: Path) -> Path:
    folder = tmp_path / "restricted"
    save_drafter(random_drafter(target, torch.arange(0, 300, 3)), folder, target=target, training={})
    return folder


def test_missing_draft_vocabulary(restricted: Path, target: Target) -> None:
    (restricted / "draft_vocab.safetensors").unlink()
    refused(restricted, target, "draft_vocab.safetensors is missing", "100 ids")


def test_draft_vocabulary_of_another_drafter(restricted: Path, target: Target, tmp_path: Path) -> None:
    save_drafter(random_drafter(target, torch.arange(1, 301, 3)), tmp_path / "other", target=target, training={})
    (restricted / "draft_vocab.safetensors").write_bytes((tmp_path / "other" / "draft_vocab.safetensors").read_bytes())
    refused(restricted, target, "not the draft vocabulary")


def test_draft_vocabulary_that_the_config_does_not_name(restricted: Path, own: Path, target: Target) -> None:
    (own / "draft_vocab.safetensors").write_bytes((restricted / "draft_vocab.safetensors").read_bytes())
    refused(own, target, "names no draft vocabulary")


@pytest.mark.parametrize("ids", [[5, 4, 9, 11, 12], [1, 2, 3], [1, 2, 3, 4, 320]])
def test_draft_vocabulary_that_is_no_sorted_list(ids: list[int], target: Target, tmp_path: Path) -> None:
    drafter = random_drafter(target)
    drafter.tables.draft_ids = torch.tensor(ids)
    save_drafter(drafter, tmp_path / "out", target=target, training={})
    refused(tmp_path / "out", target, "strictly rising and in 0..319")


# ------------------------------------------------------------------ other methods and layouts


def _without(*prefixes: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda t: [t.pop(name) for name in list(t) if name.startswith(prefixes)]


def test_a_dflash_drafter_where_a_dspine_one_is_wanted(own: Path) -> None:
    edit_tensors(own, _without("injection.", "transfer_"))
    edit_config(own, drop("dspine_config"))
    with pytest.raises(CheckpointError, match=r"holds a DFlash drafter, and this is for DSpine.*\n.*dspine generate"):
        _ = read_config(own).dspine


def test_what_is_no_drafter_that_we_know(own: Path, target: Target) -> None:
    edit_tensors(own, _without("injection.", "transfer_", "fc."))
    edit_config(own, drop("dspine_config"))
    refused(own, target, "holds no drafter that this program knows", "DSpineDraftModel", "hidden_norm.weight")


def test_the_official_layout_prints_the_names_it_found(own: Path, target: Target) -> None:
    edit_config(own, put("dflash_config", "selected_prefix_code_bridge", value={"rank": 16}))
    edit_config(own, put("architectures", value=["DFlashDraftModel"]))
    edit_tensors(own, lambda t: t.update({"bridge.proj.weight": torch.zeros(2, 3)}))
    text = refused(own, target, "official layout", "report this list")
    assert "  bridge.proj.weight F32 [2, 3]\n" in text
    assert "  layers.{i}.mlp.up_proj.weight F32 [128, 64] x2" in text


def test_the_split_layout_needs_codes(specforge: Path, target: Target) -> None:
    to_split(specforge)
    (specforge / "transfer.safetensors").unlink()
    refused(specforge, target, "without its transfer space", "transfer.safetensors")


# ------------------------------------------------------------------ warnings


def test_unknown_keys_are_kept_and_named(own: Path, target: Target, tmp_path: Path) -> None:
    edit_config(own, put("novel_switch", value=7))
    edit_config(own, put("dspine_config", "novel_rate", value=0.5))
    with pytest.warns(CheckpointWarning, match=r"dspine_config\.novel_rate, novel_switch"):
        loaded = load_drafter(own, target, packed=False)
    unknown = read_config(own).unknown
    assert unknown == {"novel_switch": 7, "dspine_config.novel_rate": 0.5}
    save_drafter(loaded, tmp_path / "out", target=target, training={}, extra=unknown)
    assert read_json(tmp_path / "out")["dspine_config"]["novel_rate"] == 0.5
    assert read_config(tmp_path / "out").unknown == unknown


def test_another_template_or_mode_warns(target: Target, tmp_path: Path) -> None:
    save_drafter(random_drafter(target), tmp_path / "out", target=target, training={}, thinking=True)
    with pytest.warns(CheckpointWarning, match="another chat template"):
        load_drafter(tmp_path / "out", tiny_target(chat_template=THINKING_TEMPLATE), thinking=True)
    with pytest.warns(CheckpointWarning, match="trained with thinking on, used with thinking off"):
        load_drafter(tmp_path / "out", target, thinking=False)


def test_a_mask_that_only_later_turns_contain(target: Target) -> None:
    template = CHAT_TEMPLATE + "{% if messages|length > 2 %}<|mask|>{% endif %}"
    check_mask_token(MASK, target)
    with pytest.raises(CheckpointError, match="chat template"):
        check_mask_token(MASK, tiny_target(chat_template=template))


def test_a_template_that_refuses_system_messages(target: Target) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT_TEMPLATE
    check_mask_token(MASK, tiny_target(chat_template=template))
    check_mask_token(MASK, tiny_target(chat_template=None))
