"""What is written down about a target: its sizes, its end tokens, its readable ids, the digest of its head.

One rule: a fact is read from where the model keeps it, in old and new layouts of the config alike.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from dspine.errors import TargetError
from dspine.facts import TargetFacts

_ROWS_AT_ONCE = 8192


def rope_theta_of(config: Any) -> float:
    """The base of the rotary embedding, from `rope_parameters` (per layer type or flat) or `rope_theta`.

    Raises:
        TargetError: if the config has neither.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    parameters = parameters.get("full_attention", parameters)
    theta = parameters.get("rope_theta", getattr(config, "rope_theta", None))
    if theta is None:
        raise TargetError(
            f"the config of this {config.model_type} model has no rope_theta, nor has its rope_parameters",
            "A drafter needs a target with rotary position embeddings.",
        )
    return float(theta)


def facts_of(config: Any, vocab_size: int) -> TargetFacts:
    """Sizes of a target with `vocab_size` head rows."""
    theta, hidden, heads = rope_theta_of(config), int(config.hidden_size), int(config.num_attention_heads)
    return TargetFacts(
        hidden_size=hidden,
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * hidden),
        num_layers=int(config.num_hidden_layers),
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        vocab_size=vocab_size,
        rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        rope_theta=theta,
        max_position_embeddings=int(config.max_position_embeddings),
    )


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every end-of-answer id that generation config, config and tokenizer name."""
    found: set[int] = set()
    for source in (model.generation_config, model.config.get_text_config(decoder=True), tokenizer):
        named = getattr(source, "eos_token_id", None)
        if named is not None:
            found.update([named] if isinstance(named, int) else named)
    return frozenset(found)


def readable_ids(tokenizer: Any) -> int:
    """One past the highest id that the tokenizer has a token for."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return max(vocabulary.values()) + 1


def context_limit_of(config: Any) -> int:
    """Number of positions that can be used with one set of rotary frequencies.

    "longrope" changes all frequencies once a sequence outgrows the original length, which would make a cached key,
    and so a row's output, depend on what is decoded later or beside it.
    """
    limit = int(config.max_position_embeddings)
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type") == "longrope":
        limit = min(limit, int(parameters.get("original_max_position_embeddings") or limit))
    return limit


def digest_rows(weight: Tensor) -> str:
    """sha256 (hex) over the rows of `weight` (V, d) cast to bfloat16."""
    digest = hashlib.sha256()
    for first in range(0, len(weight), _ROWS_AT_ONCE):
        rows = weight[first : first + _ROWS_AT_ONCE].detach().to(torch.bfloat16)
        digest.update(rows.contiguous().view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()
