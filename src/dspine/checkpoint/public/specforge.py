"""SpecForge's layout: z-lab's for DFlash, DSpark with its heads in `dflash_config`, EAGLE-3 with a Llama config.

One rule: what SpecForge writes is what it reads: no tables of the target in the parallel drafters' files; EAGLE-3's
own head, and `d2t` as offsets (target id = draft id + d2t). Source: SpecForge's drafters; EAGLE-3 (arXiv 2503.01840).
"""

from __future__ import annotations

from typing import Any

from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public.eagle import STEPS, eagle_sizes
from dspine.checkpoint.public.markov import KEYS, dspark_sizes, no_bias
from dspine.checkpoint.public.names import HEAD, as_midlayer, common_names, split
from dspine.checkpoint.public.normal import Normal
from dspine.checkpoint.public.sizes import Source
from dspine.checkpoint.public.zlab import no_mask_row

NAME = "SpecForge"


def read_dspark(contents: Contents, layers: int | None) -> Normal:
    """A DSpark drafter, its fields in `dflash_config`."""
    no_mask_row(contents)
    source = Source.of(contents, layers)
    source.check({"dflash_config.projector_type": ("dspark", None)})
    tensors, tables, vocabulary = split(common_names(contents))
    taps, notes = source.tapped()
    sizes = dspark_sizes(source, source.decoder() | source.block(logits_start=0) | taps, tensors)
    known = (*KEYS, "attention_mode", "confidence_head_alpha", "projector_type")
    return Normal(
        layout=NAME,
        sizes=sizes,
        tensors=tensors,
        tables=tables,
        vocabulary=vocabulary,
        absent=no_bias(sizes, tensors),
        unknown=source.unknown(*known, *(f"dflash_config.{key}" for key in known)),
        notes=(*contents.notes, *notes),
    )


def read_eagle3(contents: Contents, layers: int | None) -> Normal:
    """An EAGLE-3 drafter: its authors' files and SpecForge's."""
    source = Source.of(contents, layers)
    source.check({"norm_output": (True, None)})  # here: the head reads what is normed
    found = as_midlayer(common_names(contents))
    tensors, tables, vocabulary = split(found, own_head=True)
    taps, notes = source.tapped(eagle=True)
    if "draft_vocab_size" in source.config.raw and not _restricted(source.config.raw):
        vocabulary = {}  # maps of the whole vocabulary onto itself
    steps = STEPS if source.said("block_size") is None else source.integer("block_size", least=2) - 1
    return Normal(
        layout=NAME,
        sizes=eagle_sizes(source, taps, tensors, own_head=HEAD in tensors, steps=steps),
        tensors=tensors,
        tables=tables,
        vocabulary=vocabulary,
        unknown=source.unknown(
            "draft_vocab_size",
            "norm_output",
            "eagle_config.eagle_aux_hidden_state_layer_ids",
            "eagle_config.use_aux_hidden_state",
        ),
        notes=(*contents.notes, *notes),
    )


def _restricted(raw: Any) -> bool:
    return bool(raw["draft_vocab_size"] != raw.get("vocab_size"))
