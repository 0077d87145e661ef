"""Sizes that a published config may leave out.

One rule: rank and message size are read off the tensors, which cannot lie; K is the one published for every DSpine
checkpoint, and saying so is a warning. Source: DSpine (arXiv 2609.36173), K = 16.
"""

from __future__ import annotations

from dataclasses import replace

from dspine.checkpoint.layout import Contents

TOP_K = 16
_BIAS, _READOUT = "injection.bias", "injection.readouts.0.weight"


def complete(contents: Contents) -> Contents:
    """Fill `dspine_config` where it is missing."""
    if "dspine_config" in contents.raw or not {_BIAS, _READOUT} <= contents.tensors.keys():
        return contents
    sizes = {
        "transfer_rank": contents.tensors[_READOUT].shape[0],
        "message_size": contents.tensors[_BIAS].shape[0],
        "top_k": TOP_K,
    }
    note = f"{contents.folder}: config.json has no dspine_config; taken from the tensors and the paper: {sizes}"
    return replace(contents, raw={**contents.raw, "dspine_config": sizes}, notes=(*contents.notes, note))
