"""Keys of public config.json files: what is read, what may be anything, and what must have its usual value.

One rule: a key that is in none of the three is named to the user. Sources: transformers' Qwen3Config and LlamaConfig;
the published configs of DFlash (arXiv 2602.06036), EAGLE-3 (arXiv 2503.01840) and their descendants.
"""

from __future__ import annotations

from typing import Any

from dspine.checkpoint.keys import NEUTRAL

_CAUSAL = ("is_causal", "dflash_config.causal")  # read by the parallel drafters, who may be either

# Values under which a field changes nothing that we compute, in any public layout.
HARMLESS: dict[str, tuple[Any, ...]] = {
    **{name: values for name, values in NEUTRAL.items() if name not in _CAUSAL},
    "model_type": ("qwen3", "llama"),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, True, None),  # layer_types says which layers
    "is_neox_style": (True, None),
    "rope_is_neox_style": (True, None),
    "logit_scale": (1, None),
    "fc_norm": (False, None),
    "norm_before_fc": (False, None),
    "norm_before_residual": (False, None),
    "dflash_config.attention_sink_bias": (False, None),
    "dflash_config.attention_value_scale": (1, None),
    "dflash_config.use_swa": (False, None),
}
# What speaks of training, of tokens' names or of the loader, and changes no network.
IDLE = [
    "architectures",
    "auto_map",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "transformers_version",
    "use_cache",
    "_name_or_path",
    "_attn_implementation",
    "attention_dropout",
    "initializer_range",
    "pretraining_tp",
    "tie_word_embeddings",
    "max_window_layers",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "id2label",
    "label2id",
    "problem_type",
]
READ = [
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_parameters.rope_theta",
    "max_position_embeddings",
    "layer_types",
    "sliding_window",
    "num_target_layers",
    "target_hidden_size",
    "target_layer_ids",
    "mask_token_id",
    "block_size",
    "logits_start",
    "sample_from_anchor",
    "is_causal",
    "dflash_config.causal",
    "dflash_config.mask_token",
    "dflash_config.mask_token_id",
    "dflash_config.block_size",
    "dflash_config.target_layer_ids",
    "dflash_config.logits_start",
    "dflash_config.sample_from_anchor",
]
