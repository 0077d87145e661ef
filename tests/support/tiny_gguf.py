"""A GGUF file of a tiny random Llama with a byte-level tokenizer, written in milliseconds."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from tests.support.tiny_target import BOS, BYTES, CHAT_TEMPLATE, EOS, SPECIALS, TOKENS, tiny_model
from transformers import PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

MERGED = ("ĠĠ", "ĠĠĠĠ")  # older readers want merges, and more than one
ROWS = TOKENS + len(MERGED)

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_model() -> PreTrainedModel:
    """The model that `write_gguf` writes."""
    return tiny_model("llama", vocab_size=ROWS, num_hidden_layers=2)


def write_gguf(file: Path) -> Path:
    """Write `gguf_model()` in float32 with its tokenizer; returns `file`."""
    model = gguf_model()
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(ROWS)
    alphabet = bytes_to_unicode()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*(alphabet[byte] for byte in range(BYTES)), *SPECIALS, *MERGED])
    writer.add_token_types(
        [gguf.TokenType.NORMAL] * BYTES + [gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL]
    )
    writer.add_token_merges(["Ġ Ġ", "ĠĠ ĠĠ"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in _tensors(model).items():
        writer.add_tensor(name, tensor.detach().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    config, state = model.config, model.state_dict()
    out = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for theirs, ours in _NAMES.items():
            tensor = state[f"model.layers.{layer}.{theirs}.weight"]
            if ours in heads:  # llama.cpp keeps the two halves of a rotary pair side by side
                rows = tensor.view(heads[ours], 2, -1, tensor.shape[1])
                tensor = rows.transpose(1, 2).reshape(tensor.shape)
            out[f"blk.{layer}.{ours}.weight"] = tensor
    return out
