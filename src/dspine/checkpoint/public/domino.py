"""The Domino layout: z-lab's, with a GRU and a projection beside the backbone.

One rule: `shift_label` must be said, since programs disagree on what its absence means; true is `logits_start` 0 here.
Source: Domino (arXiv 2605.29707) as its authors and SpecForge publish it; its first files put `logit_head.` before the
head's names.
"""

from __future__ import annotations

from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public.names import common_names, split
from dspine.checkpoint.public.normal import Normal
from dspine.checkpoint.public.sizes import Source, make
from dspine.checkpoint.public.zlab import no_mask_row
from dspine.drafter.domino import DominoConfig

NAME = "Domino"
_KEYS = ("emb_dim", "gru_hidden_dim", "pure_draft_prefix_len", "shift_label", "projector_type")


def read(contents: Contents, layers: int | None) -> Normal:
    """A Domino drafter."""
    no_mask_row(contents)
    source = Source.of(contents, layers)
    source.check({"dflash_config.projector_type": ("domino", "causal_v5", None)})
    if (pure := source.said("pure_draft_prefix_len")) != 1:
        raise source.config.error(
            "dflash_config.pure_draft_prefix_len",
            f"is {pure!r}; here the first place alone is left uncorrected, which is 1",
            "Drafters of another prefix (SpecForge reads an absent one as 0) run where they were trained.",
        )
    if (shifted := source.flag("shift_label")) is None:
        raise source.config.error(
            "dflash_config.shift_label",
            "is missing: without it nothing tells whether row k predicts its own place or the next",
            "Set it as in training: true in the published Qwen3 recipes.",
        )
    tensors, tables, vocabulary = split(common_names(contents))
    taps, notes = source.tapped()
    sizes = {
        **source.decoder(),
        **source.block(logits_start=int(not shifted)),
        **taps,
        "gru_hidden_size": source.integer("gru_hidden_dim"),
        "projection_size": source.integer("emb_dim"),
    }
    return Normal(
        layout=NAME,
        sizes=make(DominoConfig, sizes, source),
        tensors=tensors,
        tables=tables,
        vocabulary=vocabulary,
        unknown=source.unknown("emb_dim", *(f"dflash_config.{key}" for key in _KEYS)),
        notes=(*contents.notes, *notes),
    )
