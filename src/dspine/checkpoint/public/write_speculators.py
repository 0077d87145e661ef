"""Writing speculators' layout: DFlash, DFlash2, DSpark, EAGLE-3.

One rule: what is written loads into speculators' own classes with no tensor missing or left over but the target's
embedding, which they take from the target. A DSpark walk by table is no part of the layout. Source: speculators (vLLM).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dspine.checkpoint.public.decoder import decoder_json
from dspine.checkpoint.public.speculators import DECODER, NAME, SECTION, TYPE
from dspine.checkpoint.public.writing import Written, attention_json, cannot, refuse_confidence
from dspine.drafter.config import BackboneConfig, ParallelConfig
from dspine.drafter.dflash2 import DFlash2Config
from dspine.drafter.domino import DominoConfig
from dspine.drafter.dspark import DSparkConfig
from dspine.drafter.eagle3 import Eagle3Config

_TOP = (
    "num_target_layers",
    "rope_theta",
    "rope_scaling",
)  # no fields of the nested decoder


def refuse(sizes: BackboneConfig, restricted: bool) -> None:
    """Refuse what the layout cannot hold.

    Raises:
        CheckpointError: naming it.
    """
    refuse_confidence(NAME, sizes)
    if isinstance(sizes, DominoConfig):
        raise cannot(NAME, "a Domino drafter", "specforge")
    if isinstance(sizes, DFlash2Config) and restricted:
        raise cannot(NAME, "a restricted draft vocabulary of a DFlash2 drafter", "dspine")
    if isinstance(sizes, ParallelConfig):
        full = len(sizes.sliding_layers) < sizes.num_hidden_layers
        if sizes.is_causal and full:
            raise cannot(NAME, "layers of full attention whose rows see earlier rows alone", "specforge")


def speculators_files(written: Written) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors."""
    sizes = written.drafter.config
    decoder = {k: v for k, v in decoder_json(sizes, written.target, written.dtype).items() if k not in _TOP}
    decoder["rope_parameters"] = {"rope_theta": sizes.rope_theta, "rope_type": "default"}
    restricted = written.drafter.draft_ids is not None
    if isinstance(sizes, Eagle3Config):
        decoder["model_type"] = "qwen3" if sizes.qk_norm else "llama"
        own, tensors = _eagle3(sizes), written.with_head()
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    else:
        assert isinstance(sizes, ParallelConfig)  # the only other kind that is left
        decoder |= attention_json(sizes)
        own, tensors = _parallel(sizes), written.with_head() if restricted else dict(written.tensors)
    config = {
        "speculators_version": "0.9.0",
        **own,
        "draft_vocab_size": written.draft_size(),
        "dtype": decoder["dtype"],
        "num_target_layers": sizes.num_target_layers,
        SECTION: _proposal(own[TYPE], sizes.candidates, written),
        DECODER: decoder,
    }
    return config, tensors | (written.maps() if restricted else {})


def _proposal(method: str, candidates: int, written: Written) -> dict[str, Any]:
    return {
        "algorithm": method,
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": candidates,
                "accept_tolerance": 0.0,
                "verifier_accept_k": 1,
            }
        ],
        "verifier": {"name_or_path": written.target.name, "architectures": [type(written.target.model).__name__]},
    }


def _parallel(sizes: ParallelConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "block_size": sizes.block_size,
        "mask_token_id": sizes.mask_token_id,
        "aux_hidden_state_layer_ids": [k + 1 for k in sizes.target_layer_ids],
        "sample_from_anchor": sizes.logits_start == 0,
        "sliding_window_non_causal": _sees_ahead(sizes),
    }
    if isinstance(sizes, DSparkConfig):
        return {
            TYPE: "dspark",
            "architectures": ["DSparkSpeculator"],
            **fields,
            "markov_rank": sizes.markov_rank,
            "markov_head_type": sizes.markov_head,
            "enable_confidence_head": sizes.confidence,
            "confidence_head_with_markov": sizes.confidence_with_markov,
        }
    if isinstance(sizes, DFlash2Config):
        return {
            TYPE: "dflash2",
            "architectures": ["DFlash2DraftModel"],
            **fields,
            "conv_kernel_size": sizes.conv_taps,
            "conv_group_size": sizes.conv_group_size,
            "selector_rank": sizes.selector_rank,
            "selector_top_k": sizes.top_k,
        }
    return {TYPE: "dflash", "architectures": ["DFlashSpeculator"], **fields}


def _sees_ahead(sizes: ParallelConfig) -> bool:
    """Whether rows of sliding layers see those behind them; without such layers vLLM takes it for all the others."""
    return sizes.is_causal is False or (sizes.is_causal is None and not sizes.sliding_layers)


def _eagle3(sizes: Eagle3Config) -> dict[str, Any]:
    return {
        TYPE: "eagle3",
        "architectures": ["Eagle3Speculator"],
        "eagle_aux_hidden_state_layer_ids": [k + 1 for k in sizes.target_layer_ids],
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
    }
