"""Tiny random targets whose layers keep states: one of each family that transformers knows and that is supported.

They have few layers, a convolution of four places, and weights large enough that states matter to what comes out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import transformers
from tests.support.tiny_target import BOS, EOS, PAD, tiny_tokenizer
from transformers import PreTrainedModel

from dspine.target.model import Target
from dspine.target.rollback import Asked

_FIELDS: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 16}

# Class of the config (without its ending), and what its fields are beside the common ones.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3Next", {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3_5": ("Qwen3_5Text", _DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeText", {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 32}),
    "olmo_hybrid": ("OlmoHybrid", {**_DELTA, "linear_num_key_heads": 4}),
    "kimi_linear": (
        "KimiLinear",
        {
            "layer_types": _DELTA["layer_types"],
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "mamba": ("Mamba", {"state_size": 8, "time_step_rank": 4}),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16}),
    "falcon_mamba": ("FalconMamba", {"state_size": 8, "time_step_rank": 4}),
    "jamba": (
        "Jamba",
        {
            "attn_layer_period": 4,
            "attn_layer_offset": 3,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
    ),
    "bamba": ("Bamba", {**_MAMBA2, "attn_layer_indices": [3], "attn_rotary_emb": 16}),
    "falcon_h1": ("FalconH1", {**_MAMBA2, "mamba_d_ssm": 128}),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {
            **_MAMBA2,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
        },
    ),
    "nemotron_h": (
        "NemotronH",
        {
            "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 16,
            "chunk_size": 16,
            "time_step_min": 1e-9,  # as for Zamba2
        },
    ),
    "zamba2": (
        "Zamba2",
        {
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
            "mamba_d_state": 16,
            "mamba_headdim": 16,
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
            "chunk_size": 16,
            "num_mem_blocks": 1,
            "use_mem_rope": True,
            "time_step_min": 1e-9,  # blocks clamp their time steps to it, single steps do not
        },
    ),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3}),
}


def hybrid_model(
    family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """A random model of a family; `overrides` are config fields."""
    name, own = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**_FIELDS, **own, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the others know no float64
    return model.to(dtype).eval()


def hybrid_target(
    family: str,
    *,
    rollback: Asked = "replay",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **overrides: Any,
) -> Target:
    """Our `Target` around a `hybrid_model`."""
    model = hybrid_model(family, dtype=dtype, seed=seed, **overrides)
    return Target(model, tiny_tokenizer(), name=f"tiny-{family}", rollback=rollback)


class _Wide:
    """`torch`, where float32 is float64."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def wide(model: PreTrainedModel) -> Iterator[None]:
    """Let a float64 model's mixers compute in float64 too; transformers gives them float32 whatever the model is in."""
    modules = {sys.modules[type(part).__module__] for part in model.modules()}
    written = [module for module in modules if module.__name__.startswith("transformers.models.")]
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        for module in written:
            module.torch = _Wide()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in written:
                module.torch = torch  # type: ignore[attr-defined]
