"""Keys of a drafter's config.json.

One rule: a key is known with its meaning, or it is named to the user; a known one whose value would make another
network of the drafter is refused. Source: the published schema of DSpine (arXiv 2609.36173) drafters.
"""

from __future__ import annotations

from typing import Any

from dspine.checkpoint.switches import WRITTEN

FORMAT = "dspine_format"  # our own section
FULL = "full_attention"
SECTIONS = ("dflash_config", "dspine_config", "rope_parameters", FORMAT)

# Fields of `dspine_config` that only training reads, with the paper's values; 0 where they depend on the run.
OBJECTIVE: dict[str, float | int] = {
    "ce_weight": 0.1,
    "alignment_weight": 0.5,
    "alignment_warmup_steps": 0,
    "replacement_layers": 0,
    "replacement_probability": 0.5,
    "replacement_hold_ratio": 1 / 6,
    "replacement_end_ratio": 1 / 3,
    "candidate_mass_threshold": 1e-4,
}

# Values under which a field changes nothing that we compute.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("qwen3",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "rope_scaling": (None,),
    "rope_parameters.rope_type": ("default",),
    "rope_parameters.partial_rotary_factor": (1, None),
    "dflash_config.input_embedding_scale": (1, None),
    "dflash_config.output_multiplier": (1, None),
    "dflash_config.final_logit_softcapping": (None,),
}

_READ = {
    "": (
        "architectures",
        "auto_map",
        "block_size",
        "num_hidden_layers",
        "num_target_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "tie_word_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "max_position_embeddings",
        "layer_types",
        "is_causal",
        "sliding_window",
        "max_window_layers",
        "dtype",
        "torch_dtype",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "mask_token_id",
        "target_layer_ids",
        "attention_dropout",
        "initializer_range",
        "use_cache",
        "transformers_version",
        "_name_or_path",
    ),
    "rope_parameters.": ("rope_theta",),
    "dflash_config.": ("mask_token_id", "target_layer_ids", "block_size", "causal", "selected_prefix_code_bridge"),
    "dspine_config.": ("transfer_rank", "message_size", "top_k", *WRITTEN, *OBJECTIVE),
    f"{FORMAT}.": ("version", "layout", "written_by", "target", "training", "draft_vocabulary"),
}
KNOWN = NEUTRAL.keys() | {f"{section}{key}" for section, keys in _READ.items() for key in keys}
