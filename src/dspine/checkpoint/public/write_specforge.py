"""Writing SpecForge's layout: DFlash, Domino, DSpark, EAGLE-3.

One rule: what is written loads into SpecForge's own classes with no tensor missing or left over. How many steps an
EAGLE-3 drafter drafts is no part of that layout: it is said in `block_size`, which SpecForge does not read; nor does
it know a DSpark walk by table. Source: SpecForge's draft models and example configs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dspine.checkpoint.public.decoder import decoder_json
from dspine.checkpoint.public.specforge import NAME
from dspine.checkpoint.public.writing import Written, attention_json, cannot, refuse_confidence
from dspine.drafter.config import BackboneConfig, ParallelConfig
from dspine.drafter.dflash2 import DFlash2Config
from dspine.drafter.domino import DominoConfig
from dspine.drafter.dspark import DSparkConfig
from dspine.drafter.eagle3 import Eagle3Config


def refuse(sizes: BackboneConfig, restricted: bool) -> None:
    """Refuse what the layout cannot hold.

    Raises:
        CheckpointError: naming it.
    """
    refuse_confidence(NAME, sizes)
    if isinstance(sizes, DFlash2Config):
        raise cannot(NAME, "a DFlash2 drafter", "speculators")
    if isinstance(sizes, Eagle3Config):
        if sizes.qk_norm:
            raise cannot(NAME, "norms of an EAGLE-3 drafter's queries and keys", "speculators")
        return
    if restricted:
        other = "dspine" if isinstance(sizes, DominoConfig) else "speculators"
        raise cannot(NAME, "a restricted draft vocabulary of a parallel drafter", other)
    if isinstance(sizes, DSparkConfig) and sizes.logits_start:
        raise cannot(NAME, "a DSpark drafter whose first row is not used", "speculators")


def specforge_files(written: Written) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors."""
    sizes = written.drafter.config
    config = decoder_json(sizes, written.target, written.dtype) | {"block_size": sizes.block_size}
    if isinstance(sizes, Eagle3Config):
        return config | _eagle3(written, sizes), written.with_head() | written.maps()
    assert isinstance(sizes, ParallelConfig)  # the only other kind that is left
    name, own = _head(sizes)
    fields = {"mask_token_id": sizes.mask_token_id, "target_layer_ids": list(sizes.target_layer_ids), **own}
    config |= attention_json(sizes) | {
        "architectures": [f"{name}DraftModel"],
        "auto_map": {"AutoModel": f"{name.lower()}.{name}DraftModel"},
        "dflash_config": fields,
    }
    if sizes.is_causal is not None:
        config["is_causal"] = sizes.is_causal
    return config, dict(written.tensors)


def _head(sizes: ParallelConfig) -> tuple[str, dict[str, Any]]:
    """The name of the class, and the fields that its head is made from."""
    if isinstance(sizes, DominoConfig):
        return "Domino", {
            "projector_type": "domino",
            "pure_draft_prefix_len": 1,
            "emb_dim": sizes.projection_size,
            "gru_hidden_dim": sizes.gru_hidden_size,
            "shift_label": sizes.logits_start == 0,
        }
    many = sizes.num_attention_heads == sizes.num_key_value_heads
    dspark = {"projector_type": "dspark", "attention_mode": "mha" if many else "gqa"}
    if isinstance(sizes, DSparkConfig):
        return "DSpark", dspark | {
            "markov_rank": sizes.markov_rank,
            "markov_head_type": sizes.markov_head,
            "enable_confidence_head": sizes.confidence,
            "confidence_head_with_markov": sizes.confidence_with_markov,
        }
    if sizes.logits_start == 0:  # DFlash whose rows predict the next token is DSpark without its heads
        return "DSpark", dspark | {"markov_rank": 0, "enable_confidence_head": False}
    return "DFlash", {}


def _eagle3(written: Written, sizes: Eagle3Config) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": written.draft_size(),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(sizes.target_layer_ids),
            "use_aux_hidden_state": True,
        },
    }
