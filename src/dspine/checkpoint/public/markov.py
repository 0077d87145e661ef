"""DSpark's heads in a public config: what they are, and whether they are there at all.

One rule: rank 0 is no Markov head, and then the drafter is a DFlash one whose rows predict the next token. Source:
DSpark (arXiv 2607.05147), DeepSpec's class and its re-implementations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspine.checkpoint.public.sizes import Source, make
from dspine.checkpoint.weights import StoredTensor
from dspine.drafter.config import BackboneConfig
from dspine.drafter.dflash import DFlashConfig
from dspine.drafter.dspark import DSparkConfig

KEYS = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
_WEIGHT, _BIAS = "confidence_head.proj.weight", "confidence_head.proj.bias"


def dspark_sizes(source: Source, sizes: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> BackboneConfig:
    """Sizes of a DSpark drafter, or of DFlash where its config has no Markov head.

    Raises:
        CheckpointError: a confidence without a Markov head, or sizes that do not fit each other.
    """
    rank = source.integer("markov_rank", least=0) if source.said("markov_rank") is not None else 0
    confidence = source.flag("enable_confidence_head")
    confidence = _WEIGHT in tensors if confidence is None else confidence
    if not rank:
        if confidence:
            raise source.config.error(
                "enable_confidence_head",
                "is true with markov_rank 0: a confidence without a Markov head",
                "Drafters here have a confidence beside a Markov head alone: leave it out, or run the drafter where it "
                "was trained.",
            )
        return make(DFlashConfig, sizes, source)
    heads = {
        "markov_rank": rank,
        "markov_head": source.said("markov_head_type") or "vanilla",
        "confidence": confidence,
        "confidence_with_markov": _with_markov(source, sizes, tensors),
    }
    return make(DSparkConfig, {**sizes, **heads}, source)


def no_bias(sizes: BackboneConfig, tensors: Mapping[str, StoredTensor]) -> frozenset[str]:
    """The confidence's bias, where a file leaves it out: the paper has none."""
    wanted = isinstance(sizes, DSparkConfig) and sizes.confidence
    return frozenset({_BIAS} if wanted and _WEIGHT in tensors and _BIAS not in tensors else ())


def _with_markov(source: Source, sizes: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether the confidence reads the predecessor: as is said, else as wide as its weight is."""
    said = source.flag("confidence_head_with_markov")
    if said is None and _WEIGHT in tensors:
        return bool(tensors[_WEIGHT].shape[-1] != sizes["hidden_size"])
    return bool(said)
