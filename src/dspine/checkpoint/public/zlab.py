"""z-lab's layout of DFlash and DFlash2: the drafter's own tensors, and a `dflash_config` in a Qwen3 config.

One rule: embedding and head are the target's and not in the file. SpecForge writes its DFlash drafters in the same
way. Source: DFlash (arXiv 2602.06036) and DFlash2 as z-lab publishes them.
"""

from __future__ import annotations

from typing import Any

from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public.names import common_names, split
from dspine.checkpoint.public.normal import Normal
from dspine.checkpoint.public.sizes import Source, make
from dspine.drafter.dflash import DFlashConfig
from dspine.drafter.dflash2 import DFlash2Config
from dspine.errors import CheckpointError

NAME = "z-lab"
_SIDE = "mask_embedding.pt"
_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_PROJECTORS = (None, "dflash", "dflash2")


def read(contents: Contents, layers: int | None) -> Normal:
    """A DFlash drafter, or, by its selector, a DFlash2 one."""
    no_mask_row(contents)
    source = Source.of(contents, layers)
    source.check({"dflash_config.projector_type": _PROJECTORS})
    tensors, tables, vocabulary = split(common_names(contents))
    second = any(name.startswith("candidate_selector.") for name in tensors)
    taps, notes = source.tapped()
    sizes = source.decoder() | source.block(logits_start=1) | taps
    return Normal(
        layout=NAME,
        sizes=make(DFlash2Config, sizes | selector(source), source) if second else make(DFlashConfig, sizes, source),
        tensors=tensors,
        tables=tables,
        vocabulary=vocabulary,
        unknown=source.unknown(*(f"dflash_config.{key}" for key in _KEYS)),
        notes=(*contents.notes, *notes),
    )


def selector(source: Source) -> dict[str, Any]:
    """DFlash2's own sizes."""
    return {
        "conv_taps": source.integer("conv_kernel_size"),
        "conv_group_size": source.integer("conv_group_size"),
        "selector_rank": source.integer("selector_rank"),
        "top_k": source.integer("selector_top_k"),
    }


def no_mask_row(contents: Contents) -> None:
    """Refuse a mask embedding of the drafter's own.

    Raises:
        CheckpointError: there is one beside the weights.
    """
    if (contents.folder / _SIDE).exists():
        raise CheckpointError(
            f"{contents.folder}: {_SIDE} replaces the target's row of the mask token, and a drafter here borrows the "
            "target's embedding as it is",
            f"Serve it where that is done: sglang serve --model-path TARGET --speculative-algorithm DFLASH "
            f"--speculative-draft-model-path {contents.folder}",
        )
