"""Finding the parts of somebody's model: decoder, layers, head, embedding, and what each layer attends to.

One rule: a part that cannot be found, or a layer that keeps a state which cannot be rolled back, is refused by
name; nothing is guessed. States that are kept through transformers' cache can be (`target/states.py`).
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dspine.errors import TargetError
from dspine.target.mixers import find_mixers

# The kinds whose forward was read line by line; any other has to pass the start-up check of `selfcheck`.
KNOWN = frozenset({"llama", "qwen2", "qwen3", "mistral"})
FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR, CONVOLUTION = "linear_attention", "conv"  # keep a state and no slots; they take no mask
# What a kind of layer sees through. Hybrid ones hold attention and a state; those of one network alone hold neither.
_SEES = {
    FULL: {FULL},
    SLIDING: {SLIDING},
    LINEAR: {LINEAR},
    CONVOLUTION: {CONVOLUTION},
    "hybrid": {FULL, LINEAR},
    "hybrid_sliding": {SLIDING, LINEAR},
    "moe": set[str](),
    "mlp": set[str](),
}
BUILT_ALIKE = "Llama, Qwen2, Qwen3 and Mistral models, and those built like them, are supported."

_RECURRENT = re.compile(r"mamba|rwkv|lstm|recurrent|\bssm|linearattention|gateddelta|shortconv|retention", re.I)
_USUAL_NAMES = ("layers", "h", "blocks", "block")


@dataclass(frozen=True)
class Anatomy:
    """The parts of a causal language model that decoding needs.

    `kinds` has one entry a layer; `sees` are the masks that they take; `mixers` are the parts that keep a state, by
    layer; `window` is how many slots a sliding layer sees; `cache_argument` is what this transformers version calls
    the cache in the decoder's forward.
    """

    config: Any
    decoder: nn.Module
    layers: nn.ModuleList
    embedding: nn.Module
    embedding_rows: Tensor
    head: nn.Module
    head_rows: int
    kinds: tuple[str, ...]
    mixers: dict[int, nn.Module]
    window: int | None
    cache_argument: str
    known: bool

    @property
    def sees(self) -> frozenset[str]:
        return frozenset().union(*(_SEES[kind] for kind in self.kinds))


def examine(model: Any) -> Anatomy:
    """Find the parts of `model`.

    Raises:
        TargetError: encoder-decoder, recurrent or unknown layers; layers, embedding or head not found.
    """
    name = type(model).__name__
    refuse_config(model.config, name)
    config = model.config.get_text_config(decoder=True)
    decoder = model.get_decoder()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    rows = getattr(embedding, "weight", None)
    head_rows = getattr(head, "out_features", None) or len(getattr(head, "weight", ()))
    if not isinstance(rows, Tensor) or not head_rows:
        raise TargetError(f"{name} has no language-model head", "Give a model of a `…ForCausalLM` class.")
    kinds, window = _attention(config)
    layers = _find_layers(decoder, config.num_hidden_layers, name)
    return Anatomy(
        config=config,
        decoder=decoder,
        layers=layers,
        embedding=embedding,
        embedding_rows=rows,
        head=head,
        head_rows=int(head_rows),
        kinds=kinds,
        mixers=_mixers(model, layers, kinds, name),
        window=window,
        cache_argument=_cache_argument(decoder, name),
        known=config.model_type in KNOWN and type(model).__module__.startswith("transformers.models."),
    )


def refuse_config(config: Any, name: str) -> None:
    """Refuse, before any weight is read, what the config already shows to be unsupported.

    Raises:
        TargetError: encoder-decoder models; layers whose cache a smaller length does not roll back.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise TargetError(f"{name} is an encoder-decoder model", "Give a decoder-only language model.")
    text = config.get_text_config(decoder=True)
    others = set(getattr(text, "layer_types", None) or ()) - set(_SEES)
    if "local" in (getattr(text, "attention_layers", None) or ()):  # GPT-Neo: a window that no mask of ours reaches
        others.add("local")
    if others:
        raise _not_rolled_back(name, sorted(others))


def _not_rolled_back(name: str, kinds: list[str]) -> TargetError:
    return TargetError(
        f"{name} has layers of type {', '.join(kinds)}: rolling their state back after a rejected candidate is not "
        "supported",
        f"Supported layer types: {', '.join(_SEES)}; their states have to be kept in transformers' cache.",
    )


def _mixers(model: Any, layers: nn.ModuleList, kinds: tuple[str, ...], name: str) -> dict[int, nn.Module]:
    """The part of each layer that keeps a state.

    Raises:
        TargetError: a state that is kept elsewhere than in transformers' cache; several parts of a layer that keep one.
    """
    found = {index: parts for index, layer in enumerate(layers) if (parts := find_mixers(layer))}
    wanted = {index for index, kind in enumerate(kinds) if _SEES[kind] & {LINEAR, CONVOLUTION}}
    # Some kinds call their layers attention whatever they hold; what their code calls says more.
    if wanted - found.keys() or (getattr(model, "_is_stateful", False) and not found):
        named = {type(m).__name__ for m in model.modules() if _RECURRENT.search(type(m).__name__)}
        raise _not_rolled_back(name, sorted(named) or sorted({kinds[index] for index in wanted}) or ["recurrent state"])
    crowded = next((parts for parts in found.values() if len(parts) > 1), None)
    if crowded is not None:
        raise _not_rolled_back(name, sorted({type(part).__name__ for part in crowded}))
    return {index: parts[0] for index, parts in found.items()}


def _find_layers(decoder: nn.Module, count: int, name: str) -> nn.ModuleList:
    lists = {
        path: module
        for path, module in decoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    }
    candidates = [path for path in lists if path.rsplit(".", 1)[-1] in _USUAL_NAMES] or list(lists)
    # A list inside a decoder layer (experts, say) may be as long; the outermost one is meant.
    depth = min((path.count(".") for path in candidates), default=0)
    outermost = [path for path in candidates if path.count(".") == depth]
    if len(outermost) != 1:
        found = ", ".join(lists) or "none"
        raise TargetError(f"{name}: its {count} decoder layers were not found (lists so long: {found})", BUILT_ALIKE)
    return lists[outermost[0]]


def _attention(config: Any) -> tuple[tuple[str, ...], int | None]:
    window = getattr(config, "sliding_window", None)
    kinds = tuple(getattr(config, "layer_types", None) or ())
    if not kinds:
        # Without a list all layers are alike. Llama knows no window, whatever its config carries along.
        windowed = window is not None and getattr(config, "use_sliding_window", True)
        kinds = (SLIDING if windowed and config.model_type != "llama" else FULL,) * config.num_hidden_layers
    if SLIDING in kinds and window is None:
        raise TargetError("the config's layer_types name sliding_attention, but it has no sliding_window")
    return kinds, window if SLIDING in kinds else None


def _cache_argument(decoder: nn.Module, name: str) -> str:
    parameters = inspect.signature(decoder.forward).parameters
    for argument in ("cache", "past_key_values"):  # the second is the only name before transformers 5.24
        if argument in parameters:
            return argument
    raise TargetError(f"{name}: the forward of its {type(decoder).__name__} takes no key/value cache", BUILT_ALIKE)
