"""speculators' layout: the decoder's config nested, taps as indices of hidden_states, a draft vocabulary in the file.

One rule: `speculators_model_type` says the method; with fewer than V draft tokens the file holds d2t, t2d and the rows
of a head, which are the target's for all but EAGLE-3. Source: the configs and models of speculators (vLLM).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public.eagle import STEPS, eagle_sizes
from dspine.checkpoint.public.markov import KEYS, dspark_sizes, no_bias
from dspine.checkpoint.public.names import HEAD, as_midlayer, common_names, split
from dspine.checkpoint.public.normal import Normal
from dspine.checkpoint.public.sizes import Source, make
from dspine.checkpoint.public.zlab import selector
from dspine.drafter.config import BackboneConfig
from dspine.drafter.dflash import DFlashConfig
from dspine.drafter.dflash2 import DFlash2Config

NAME = "speculators"
TYPE, SECTION, DECODER = "speculators_model_type", "speculators_config", "transformer_layer_config"
METHODS = ("dflash", "dflash2", "dspark", "eagle3")
_KEYS = (
    TYPE,
    SECTION,
    DECODER,
    "speculators_version",
    "draft_vocab_size",
    "aux_hidden_state_layer_ids",
    "eagle_aux_hidden_state_layer_ids",
    "sliding_window_non_causal",
    "norm_output",
    "embed_requires_grad",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    *KEYS,
)


def read(contents: Contents, layers: int | None) -> Normal:
    """A drafter of any of the methods that speculators trains and we know.

    Raises:
        CheckpointError: it is of another method.
    """
    source = Source.of(contents, layers, DECODER)
    method = source.config.raw.get(TYPE) or source.config.section(SECTION).text("algorithm")
    if method not in METHODS:
        raise source.config.error(
            TYPE,
            f"is {method!r}; this program reads {', '.join(METHODS)}",
            f"Serve it where it runs: vllm serve TARGET --speculative-config "
            f'\'{{"model": "{contents.folder}", "num_speculative_tokens": N}}\'',
        )
    source.check({"norm_output": (False, None)})  # here: the next step is fed what is normed
    eagle = method == "eagle3"
    found = common_names(contents)
    tensors, tables, vocabulary = split(as_midlayer(found) if eagle else found, own_head=eagle)
    taps, notes = source.tapped(eagle=eagle)
    sizes = _eagle3(source, taps, tensors) if eagle else _parallel(source, method, taps, tensors)
    if source.integer("draft_vocab_size") == sizes.vocab_size:
        vocabulary = {}  # maps of the whole vocabulary onto itself
    return Normal(
        layout=NAME,
        sizes=sizes,
        tensors=tensors,
        tables=tables,
        vocabulary=vocabulary,
        absent=no_bias(sizes, tensors),
        facts={"verifier": _verifier(source)} if _verifier(source) else {},
        unknown=source.unknown(*_KEYS),
        notes=(*contents.notes, *notes),
    )


def _parallel(source: Source, method: str, taps: Mapping[str, Any], tensors: Mapping[str, Any]) -> BackboneConfig:
    first = 0 if method == "dspark" else 1
    spare = source.integer("block_size") - (_drafted(source) or 0)
    if spare in (0, 1):  # files from before `sample_from_anchor`
        first = spare
    sizes = source.decoder() | source.block(logits_start=first) | dict(taps)
    if method == "dspark":
        return dspark_sizes(source, sizes, tensors)
    if method == "dflash2":
        if source.flag("sliding_window_non_causal") is None and sizes["is_causal"] is None:
            sizes["is_causal"] = False  # speculators' default for this method alone
        return make(DFlash2Config, sizes | selector(source), source)
    return make(DFlashConfig, sizes, source)


def _eagle3(source: Source, taps: Mapping[str, Any], tensors: Mapping[str, Any]) -> BackboneConfig:
    return eagle_sizes(source, taps, tensors, own_head=HEAD in tensors, steps=_drafted(source) or STEPS)


def _drafted(source: Source) -> int | None:
    """M, tokens that the file proposes to draft; None if it does not say."""
    methods = source.config.section(SECTION).raw.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else {}
    tokens = first.get("speculative_tokens") if isinstance(first, dict) else None
    return tokens if type(tokens) is int else None


def _verifier(source: Source) -> str | None:
    name = source.config.section(SECTION).section("verifier").raw.get("name_or_path")
    return name if isinstance(name, str) else None
