"""The authors' split layout: trained tensors in model.safetensors, codes in a transfer.safetensors beside it.

One rule: the reference code drafts blocks of 16 with full attention whatever its config says, so those two are set
here, with a warning where the config differs. Source: the reference layout of DSpine (arXiv 2609.36173).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dspine.checkpoint.keys import FULL
from dspine.checkpoint.layout import Contents, Layout
from dspine.checkpoint.published import complete
from dspine.checkpoint.specforge import CODES, codes_shape, space_of_codes
from dspine.checkpoint.weights import stored_in

TRANSFER = "transfer.safetensors"
BLOCK_SIZE = 16


def _arrange(contents: Contents) -> Contents:
    side = stored_in(contents.folder / TRANSFER)
    tensors = {**contents.tensors, **{CODES if name == "codes" else name: tensor for name, tensor in side.items()}}
    contents = complete(replace(contents, tensors=tensors))
    inner = contents.raw.get("dflash_config")
    settled: dict[str, Any] = {"block_size": BLOCK_SIZE, "sliding_window": None, "use_sliding_window": False}
    if isinstance(layers := contents.raw.get("num_hidden_layers"), int):
        settled["layer_types"] = [FULL] * layers
    said = {**contents.raw, **(inner if isinstance(inner, dict) else {})}
    differing = [f"{key} is {said[key]!r}" for key, value in settled.items() if key in said and said[key] != value]
    raw = {**contents.raw, **settled}
    if isinstance(inner, dict):
        raw["dflash_config"] = {key: value for key, value in inner.items() if key != "block_size"}
    note = (
        f"{contents.folder}: config.json says {', '.join(differing)}; the reference code of this layout drafts blocks "
        f"of {BLOCK_SIZE} with full attention whatever it says, and so does this program"
    )
    return replace(contents, raw=raw, notes=(*contents.notes, note) if differing else contents.notes)


SPLIT = Layout(name="split (transfer.safetensors)", transfer=codes_shape, space=space_of_codes, arrange=_arrange)
