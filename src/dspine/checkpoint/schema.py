"""Names and shapes of a DSpine drafter's tensors on disk.

One rule: this table is written from the published schema, not from our module; a test holds the module to it.
Files drop the module's `backbone.` prefix. Source: the SpecForge layout of DSpine (arXiv 2609.36173) drafters.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dspine.drafter.config import DSpineConfig

Shapes = dict[str, tuple[int, ...]]

READY = "transfer_ready"
_BACKBONE = "backbone."
_SELECTION = "selection."
_APART = ("injection.", "confidence_head.")  # the module's own, beside its backbone


def parameter_shapes(config: DSpineConfig) -> Shapes:
    """Shape of every trained tensor, by its name in a file."""
    d = config.hidden_size
    shapes: Shapes = {
        "fc.weight": (d, len(config.target_layer_ids) * d),
        "hidden_norm.weight": (d,),
        "norm.weight": (d,),
    }
    for layer in range(config.num_hidden_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
        shapes[f"injection.readouts.{layer}.weight"] = (config.transfer_rank, d)
        if layer in config.injected:
            shapes[f"injection.writes.{layer}.weight"] = (d, config.message_size)
    if config.confidence:
        shapes |= {"confidence_head.proj.weight": (1, d), "confidence_head.proj.bias": (1,)}
    return shapes | _shared_shapes(config) if config.injected else shapes


def _shared_shapes(config: DSpineConfig) -> Shapes:
    """What the layers share to hear with."""
    matrices = ["message"] + ["receiver_gate", "predecessor_gate"] * config.gated
    matrices += [f"farther.{each}" for each in range(config.reach - 1)]
    shapes: Shapes = {f"injection.{name}.weight": (config.message_size, config.transfer_rank) for name in matrices}
    return shapes | ({"injection.bias": (config.message_size,)} if config.gated else {})


def _layer_shapes(config: DSpineConfig) -> Shapes:
    d, ffn, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    return {
        "self_attn.q_proj.weight": (queries, d),
        "self_attn.k_proj.weight": (keys, d),
        "self_attn.v_proj.weight": (keys, d),
        "self_attn.o_proj.weight": (d, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (ffn, d),
        "mlp.up_proj.weight": (ffn, d),
        "mlp.down_proj.weight": (d, ffn),
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
    }


def file_name(parameter: str) -> str:
    """Name in a file of a parameter of the module."""
    return parameter.removeprefix(_BACKBONE).removeprefix(_SELECTION)


def to_module(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The module's state dict out of file names."""
    return {name if name.startswith(_APART) else _BACKBONE + name: tensor for name, tensor in tensors.items()}
