"""Which public layout a folder is in.

One rule: a format that says its name is believed; else tensors tell the method, over any architecture in the config.
Source: the published layouts of DFlash, DFlash2, Domino, DSpark and EAGLE-3 drafters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspine.checkpoint.detect import method
from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public import deepspec, domino, specforge, speculators, zlab
from dspine.checkpoint.public.normal import Normal, Reader
from dspine.errors import CheckpointError

_BY_METHOD: dict[str, Reader] = {
    "DFlash": zlab.read,
    "DFlash2": zlab.read,
    "Domino": domino.read,
    "DSpark": specforge.read_dspark,
    "EAGLE-3": specforge.read_eagle3,
}
_DEEPSPEC: dict[str, Reader] = {deepspec.DSPARK: deepspec.read_dspark, deepspec.EAGLE3: deepspec.read_eagle3}


def normal_form(contents: Contents, layers: int | None) -> Normal:
    """Read a drafter of another method, whatever public layout it is in.

    Args:
        layers: decoder layers of the target; None if it is not at hand.

    Raises:
        CheckpointError: no layout that is known, or something in it that is wrong or not implemented here.
    """
    return _reader(contents)(contents, layers)


def _reader(contents: Contents) -> Reader:
    if speculators.TYPE in contents.raw or speculators.SECTION in contents.raw:
        return speculators.read
    for architecture in _architectures(contents.raw):
        if architecture in _DEEPSPEC:
            return _DEEPSPEC[architecture]
    found = method(contents)
    if found not in _BY_METHOD:
        names = ", ".join(sorted(contents.tensors)[:8])
        raise CheckpointError(
            f"{contents.folder} holds no drafter that this program knows: architectures "
            f"{_architectures(contents.raw)}, tensors {names}, ...",
            "Name the folder of a DSpine, DFlash, DFlash2, Domino, DSpark or EAGLE-3 drafter, or train one: "
            "dspine train --help",
        )
    return _BY_METHOD[found]


def _architectures(raw: Mapping[str, Any]) -> list[str]:
    named = raw.get("architectures")
    return [str(name) for name in named] if isinstance(named, list) else []
