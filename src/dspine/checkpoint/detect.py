"""Which method and which layout a folder holds.

One rule: tensors are trusted over names in the config, except for the one mark by which the official DSpine files say
what they are. Source: published layouts of DFlash, Domino, DSpark, DFlash2, EAGLE-3 and DSpine (arXiv 2609.36173).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspine.checkpoint.layout import Contents, Layout
from dspine.checkpoint.official import MARK, OFFICIAL
from dspine.checkpoint.own import BASIS, OWN
from dspine.checkpoint.public.names import common_names
from dspine.checkpoint.public.sizes import Source
from dspine.checkpoint.specforge import CODES, SPECFORGE
from dspine.checkpoint.split import SPLIT, TRANSFER
from dspine.errors import CheckpointError

DSPINE = "DSpine"
# A name that begins so belongs to this method; the first that is found decides.
_SIGNS = (
    ("candidate_selector.", "DFlash2"),
    ("markov_head.", "DSpark"),
    ("prefix_gru.", "Domino"),
    ("midlayer.", "EAGLE-3"),
    ("injection.", DSPINE),
    ("transfer_", DSPINE),
)


def method(contents: Contents) -> str:
    """The drafter's method: DSpine, DFlash, DFlash2, Domino, DSpark, EAGLE-3, or "unknown"."""
    raw, names = contents.raw, common_names(contents).keys()
    if marked_official(raw):
        return DSPINE
    for sign, found in _SIGNS:
        if any(name.startswith(sign) for name in names):
            return found
    if "dspine_config" in raw:
        return DSPINE
    if not {"fc.weight", "hidden_norm.weight"} <= names:
        return "unknown"
    # DSpark's class without its Markov head: DFlash's weights, rows that predict the next token.
    return "DSpark" if Source.of(contents, None).said("projector_type") == "dspark" else "DFlash"


def marked_official(raw: Mapping[str, Any]) -> bool:
    """Whether the config bears the mark of the official DSpine layout."""
    inner = raw.get("dflash_config")
    return isinstance(inner, Mapping) and bool(inner.get(MARK))


def layout_of(contents: Contents) -> Layout:
    """The layout of a DSpine drafter.

    Raises:
        CheckpointError: it holds neither codes nor a basis, so that its transfer space is lost.
    """
    if marked_official(contents.raw):
        return OFFICIAL
    if BASIS in contents.tensors:
        return OWN
    if CODES in contents.tensors:
        return SPECFORGE
    if (contents.folder / TRANSFER).is_file():
        return SPLIT
    raise CheckpointError(
        f"{contents.folder}: a DSpine drafter without its transfer space: neither {CODES} nor {BASIS} in the weights, "
        f"and no {TRANSFER} beside them",
        "A new eigendecomposition would not give the space it was trained with (it is defined only up to sign and "
        f"rotation): fetch the missing {TRANSFER}, or the checkpoint in SpecForge's layout.",
    )
