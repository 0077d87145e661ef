"""Finding the parts of somebody's model: decoder, layers, head, embedding, and what each layer attends to.

One rule: a part that cannot be found, or a layer that keeps a state which cannot be rolled back, is refused by name;
nothing is guessed.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from dspine.errors import TargetError

# The kinds whose forward was read line by line; any other has to pass the start-up check of `selfcheck`.
KNOWN = frozenset({"llama", "qwen2", "qwen3", "mistral"})
FULL, SLIDING = "full_attention", "sliding_attention"

_RECURRENT = re.compile(
    r"mamba|rwkv|xlstm|recurrent|\bssm|linearattention|gateddelta|shortconv|lightningattention|retention",
    re.I,
)
_USUAL_NAMES = ("layers", "h", "blocks", "block")


@dataclass(frozen=True)
class Anatomy:
    """The parts of a causal language model that decoding needs.

    `kinds` has one entry a layer, `window` is the width of its sliding layers; `cache_argument` is what this
    transformers version calls the cache in the decoder's forward.
    """

    config: Any
    decoder: nn.Module
    layers: nn.ModuleList
    embedding: nn.Module
    head: nn.Module
    kinds: tuple[str, ...]
    window: int | None
    cache_argument: str
    known: bool


def examine(model: Any) -> Anatomy:
    """Find the parts of `model`.

    Raises:
        TargetError: encoder-decoder, recurrent or unknown layers, layers or head not found.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise TargetError(
            f"{name} is an encoder-decoder model", "dspine decodes decoder-only language models."
        )
    config = model.config.get_text_config(decoder=True)
    _refuse_recurrent(model, config)
    decoder = model.get_decoder()
    layers = _find_layers(decoder, config.num_hidden_layers, name)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or embedding is None:
        raise TargetError(f"{name} has no language-model head", "Give a model of a `…ForCausalLM` class.")
    kinds, window = _attention(config)
    known = config.model_type in KNOWN
    return Anatomy(
        config, decoder, layers, embedding, head, kinds, window, _cache_argument(decoder, name), known
    )


def _refuse_recurrent(model: Any, config: Any) -> None:
    listed = sorted(set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING})
    found = sorted({type(m).__name__ for m in model.modules() if _RECURRENT.search(type(m).__name__)})
    if listed or getattr(model, "_is_stateful", False):
        what = ", ".join(listed or found) or "a recurrent state"
        raise TargetError(
            f"{type(model).__name__} has layers of type {what}: their state cannot be rolled back after a rejected "
            "candidate, and that is not supported yet",
            f"Supported layer types: {FULL}, {SLIDING}.",
        )


def _find_layers(decoder: nn.Module, count: int, name: str) -> nn.ModuleList:
    lists = {
        path: module
        for path, module in decoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    }
    usual = [path for path in lists if path.rsplit(".", 1)[-1] in _USUAL_NAMES]
    candidates = usual or list(lists)
    # A list inside a decoder layer (experts, say) may have the same length; the outermost is meant.
    outermost = [path for path in candidates if path.count(".") == min(p.count(".") for p in candidates)]
    if len(outermost) != 1:
        raise TargetError(
            f"{name}: its {count} decoder layers were not found (module lists of that length: {list(lists) or 'none'})",
            "Llama, Qwen2, Qwen3 and Mistral models, and those built like them, are supported.",
        )
    return lists[outermost[0]]


def _attention(config: Any) -> tuple[tuple[str, ...], int | None]:
    window = getattr(config, "sliding_window", None)
    kinds = tuple(getattr(config, "layer_types", None) or ())
    if not kinds:
        # Without a list the whole model is of one kind. Llama knows no window, whatever its config may carry.
        windowed = (
            window is not None
            and config.model_type != "llama"
            and getattr(config, "use_sliding_window", True)
        )
        kinds = (SLIDING if windowed else FULL,) * config.num_hidden_layers
    if SLIDING in kinds and window is None:
        raise TargetError("layer_types names sliding_attention, but the config has no sliding_window")
    return kinds, window if SLIDING in kinds else None


def _cache_argument(decoder: nn.Module, name: str) -> str:
    parameters = inspect.signature(decoder.forward).parameters
    for argument in ("cache", "past_key_values"):  # the second is the only name before transformers 5.24
        if argument in parameters:
            return argument
    raise TargetError(f"{name}: the forward of {type(decoder).__name__} takes no key/value cache")
