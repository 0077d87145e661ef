"""nano and drafters of other methods as GGUF files, under the names that llama.cpp's own converter gives them.

That converter is no package of its own; what it is given are the files that `dspine export` writes, and so it is here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file
from torch import Tensor

_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection": "attn_conv_proj",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}
_WHOLE = {
    "embed_tokens.weight": "token_embd.weight",
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}


def write_target(folder: Path, file: Path) -> None:
    """A Qwen3 target."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    _write(file, "qwen3", config, folder, tensors, {})


def write_drafter(folder: Path, target: Path, file: Path) -> None:
    """A drafter as `dspine export` wrote it, in SpecForge's layout or speculators'.

    Args:
        target: folder whose tokenizer it has.
    """
    said = json.loads((folder / "config.json").read_text())
    config = said | said.get("transformer_layer_config", {}) | said.get("dflash_config", {})
    taps = config.get("aux_hidden_state_layer_ids") or [layer + 1 for layer in config["target_layer_ids"]]
    keys: dict[str, Any] = {
        "block_size": config["block_size"],
        "target_layers": taps,
        "attention.causal": bool(config.get("is_causal", False)),
        "mask_token": config["mask_token_id"],
    }
    if "markov_rank" in config:
        keys |= {
            "sample_from_anchor": config.get("sample_from_anchor", True),
            "has_confidence_head": config["enable_confidence_head"],
        }
    if "selector_rank" in config:
        sizes = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        keys |= {name: config[name] for name in sizes}
    _write(file, "dflash", config, target, load_file(folder / "model.safetensors"), keys)


def _write(
    file: Path, kind: str, config: Mapping[str, Any], spoken: Path, tensors: Mapping[str, Tensor], keys: dict[str, Any]
) -> None:
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    _tokens(writer, spoken, config["vocab_size"])
    for key, value in keys.items():
        if key == "mask_token":
            writer.add_mask_token_id(value)
        elif isinstance(value, bool):
            writer.add_bool(f"{kind}.{key}", value)
        elif isinstance(value, list):
            writer.add_array(f"{kind}.{key}", value)
        else:
            writer.add_uint32(f"{kind}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(_named(name), np.ascontiguousarray(tensor.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    _, layer, rest = name.split(".", 2)
    kept = ".weight" if rest.endswith(".weight") else ""
    return f"blk.{layer}.{_LAYER[rest.removesuffix('.weight')]}{kept}"


def _tokens(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    """The vocabulary; how text is cut matters not, since prompts are ids."""
    said = json.loads((folder / "tokenizer.json").read_text())
    tokens, kinds = [f"<unused {index}>" for index in range(size)], [gguf.TokenType.UNUSED] * size
    for token, index in said["model"]["vocab"].items():
        tokens[index], kinds[index] = token, gguf.TokenType.NORMAL
    for added in said["added_tokens"]:
        tokens[added["id"]], kinds[added["id"]] = added["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in said["model"]["merges"]])
    writer.add_eos_token_id(json.loads((folder / "config.json").read_text())["eos_token_id"])
