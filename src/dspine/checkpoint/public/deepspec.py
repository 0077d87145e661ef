"""DeepSpec's layout: the target's config with the drafter's fields at its top, and copies of the target's tables.

One rule: what the target's config says beside the drafter's sizes is noise; embedding and head are frozen copies, and
are held to the target's. Source: DSpark (arXiv 2607.05147) and its DFlash and EAGLE-3 retrains, as deepseek-ai
publishes them.
"""

from __future__ import annotations

from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public.eagle import eagle_sizes
from dspine.checkpoint.public.markov import KEYS, dspark_sizes, no_bias
from dspine.checkpoint.public.names import as_midlayer, common_names, split
from dspine.checkpoint.public.normal import Normal
from dspine.checkpoint.public.sizes import Source

NAME = "DeepSpec"
DSPARK, EAGLE3 = "Qwen3DSparkModel", "Qwen3Eagle3Model"
# Of the target that the config was copied from: heads read neither.
_NOISE = {"rope_parameters.partial_rotary_factor", "partial_rotary_factor", "attn_output_gate", "rope_scaling"}


def read_dspark(contents: Contents, layers: int | None) -> Normal:
    """A DSpark drafter, or the DFlash one that is the same class without a Markov head."""
    source = Source.of(contents, layers)
    source.check()
    tensors, tables, vocabulary = split(common_names(contents))
    taps, notes = source.tapped()
    sizes = dspark_sizes(source, source.decoder() | source.block(logits_start=0) | taps, tensors)
    return Normal(
        layout=NAME,
        sizes=sizes,
        tensors=tensors,
        tables=tables,
        vocabulary=vocabulary,
        absent=no_bias(sizes, tensors),
        unknown=source.unknown(*KEYS, *_NOISE, "num_anchors"),
        notes=(*contents.notes, *notes),
    )


def read_eagle3(contents: Contents, layers: int | None) -> Normal:
    """An EAGLE-3 drafter over the whole vocabulary, by the target's head."""
    source = Source.of(contents, layers)
    source.check()
    tensors, tables, vocabulary = split(as_midlayer(common_names(contents)))
    taps, notes = source.tapped(eagle=True)
    steps = source.integer("ttt_length")
    known = (*_NOISE, "ttt_length", "step_loss_decay", "draft_num_hidden_layers", "target_model_name_or_path")
    return Normal(
        layout=NAME,
        sizes=eagle_sizes(source, taps, tensors, own_head=False, steps=steps),
        tensors=tensors,
        tables=tables,
        vocabulary=vocabulary,
        unknown=source.unknown(*known),
        notes=(*contents.notes, *notes),
    )
