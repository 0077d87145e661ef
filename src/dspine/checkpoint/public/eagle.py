"""EAGLE-3's sizes out of a public config.

One rule: norms of queries and keys are there if their tensors are; how many steps are drafted is no matter of the
weights. Source: EAGLE-3 (arXiv 2503.01840), SpecForge's, DeepSpec's and speculators' configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspine.checkpoint.keys import FULL
from dspine.checkpoint.public.sizes import Source, make
from dspine.checkpoint.weights import StoredTensor
from dspine.drafter.config import BackboneConfig
from dspine.drafter.eagle3 import Eagle3Config

STEPS = 7  # M where a file does not say: what it was trained for in SpecForge and DeepSpec


def eagle_sizes(
    source: Source,
    taps: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    *,
    own_head: bool,
    steps: int = STEPS,
) -> BackboneConfig:
    """Sizes of an EAGLE-3 drafter of M = `steps`.

    Raises:
        CheckpointError: sliding layers, more layers than one, or sizes that do not fit each other.
    """
    kinds = source.model.raw.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != FULL for kind in kinds)):
        raise source.model.error(
            "layer_types", f"is {kinds}; an EAGLE-3 drafter here attends to all before it", "Run it where it was made."
        )
    sizes = {
        **source.decoder(),
        **taps,
        "mask_token_id": 0,  # it embeds none
        "block_size": steps + 1,
        "qk_norm": "midlayer.self_attn.q_norm.weight" in tensors,
        "own_head": own_head,
    }
    return make(Eagle3Config, sizes, source)
