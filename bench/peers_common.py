"""What the comparisons with other projects share: their configs and random weights, our side of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3Config

from dspine.checkpoint import LayoutName, export_drafter, load_drafter
from dspine.drafter.registry import Network
from dspine.target.model import Target

LAYERS, TAPS, ROWS, CONTEXT = 3, [0, 1, 2], 5, 11
THETA = 50000.0
# The target's, in their classes: not in the files, or made again from the target.
BORROWED = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}


def qwen3(target: Target, layers: int = LAYERS, **over: Any) -> Qwen3Config:
    """A Qwen3 config of the target's width, every layer of full attention."""
    facts = target.facts
    sizes = {
        "vocab_size": facts.vocab_size,
        "hidden_size": facts.hidden_size,
        "intermediate_size": 160,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "layer_types": ["full_attention"] * layers,
        "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
        "tie_word_embeddings": False,
        "num_target_layers": facts.num_layers,
    }
    config = Qwen3Config(**{**sizes, **over})
    config._attn_implementation = "eager"
    return config


def mask_of(target: Target) -> int:
    """nano's own mask token."""
    return int(target.tokenizer.convert_tokens_to_ids("<|mask|>"))


def alive(model: nn.Module) -> nn.Module:
    """Random weights, so that every part does something; norms and the first taps of convolutions around one.

    What a convolution's rows add to its kernel stays small beside it, as it is in a trained one: where it does not, the
    rounding of float32 itself grows past the limit from layer to layer.
    """
    for name, parameter in model.named_parameters():
        parameter.data.copy_(torch.randn_like(parameter) * 0.1)
        if name.endswith("norm.weight"):
            parameter.data += 1
        if "kernel_projection" in name:
            parameter.data *= 0.1
        if name.endswith("base_kernel"):  # (sides, taps, d)
            parameter.data[:, 0] += 1
    return model.eval()


def borrow(model: Any, target: Target, ids: Tensor | None = None) -> None:
    """The target's tables in a model that holds copies."""
    weight = target.embedding.weight
    assert isinstance(weight, Tensor)
    model.embed_tokens.weight.data.copy_(weight)
    model.lm_head.weight.data.copy_(target.head_weight if ids is None else target.head_weight[ids])


def ours(model: Any, folder: Path, target: Target) -> Network:
    """Their model's own checkpoint, read by our loader."""
    model.save_pretrained(folder / "theirs")
    return load_drafter(folder / "theirs", target, dtype=torch.float32, packed=False)


def again(model: Any, folder: Path, target: Target, layout: LayoutName) -> float:
    """How far the weights are from theirs that their class loads from our export of their checkpoint."""
    export_drafter(folder / "theirs", folder / "own", target, LayoutName.dspine)
    export_drafter(folder / "own", folder / "ours", target, layout)
    _name_target(folder / "ours" / "config.json", target, folder / "target")
    back = type(model).from_pretrained(folder / "ours").state_dict()
    written = load_file(folder / "ours" / "model.safetensors")
    if left := back.keys() - written.keys() - BORROWED or written.keys() - back.keys():
        raise ValueError(f"missing in our export, or left over there: {sorted(left)}")
    state = model.state_dict()
    return max(apart(state[name].float(), back[name].float()) for name in written)


def _name_target(path: Path, target: Target, place: Path) -> None:
    """Where speculators' class finds the target, of which it loads the tables: nano's name is no folder."""
    config = json.loads(path.read_text())
    if "speculators_config" in config:
        target.model.save_pretrained(place)
        config["speculators_config"]["verifier"]["name_or_path"] = str(place)
        path.write_text(json.dumps(config))


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative where values are larger than one."""
    if one.shape != other.shape:
        raise ValueError(f"shapes {tuple(one.shape)} and {tuple(other.shape)}")
    return float(((one - other).abs() / one.abs().clamp(min=1)).max())
