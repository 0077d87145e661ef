"""The official layout (`tencent/...-DSpine-b16`): a mapping table, to be completed when its tensor names are seen.

One rule: a name that the table does not hold is an error that prints what was found; nothing is guessed. So far only
this is known: `architectures` says DFlashDraftModel, and `dflash_config.selected_prefix_code_bridge` marks the
drafter as DSpine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from dspine.checkpoint.layout import Contents, Layout
from dspine.checkpoint.published import complete
from dspine.checkpoint.specforge import codes_shape, space_of_codes
from dspine.checkpoint.weights import StoredTensor
from dspine.errors import CheckpointError

MARK = "selected_prefix_code_bridge"

# Official name → name in the common schema (dspine.checkpoint.schema, specforge.CODES); `{i}` stands for a layer.
# Not one official name has been seen yet. Completing this table is all that the layout needs.
NAMES: dict[str, str] = {}

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _arrange(contents: Contents) -> Contents:
    unknown = [name for name in contents.tensors if _pattern(name) not in NAMES]
    if unknown:
        raise CheckpointError(
            f"{contents.folder}: a DSpine drafter in the official layout (dflash_config.{MARK}), whose tensor names "
            f"this program has not learnt yet. Found:\n{_listing(contents.tensors)}",
            "Please report this list to the dspine project, so that the layout can be supported. Until then, use a "
            "checkpoint in SpecForge's layout, or train a drafter: dspine train --help",
        )
    return complete(replace(contents, tensors={_translate(name): t for name, t in contents.tensors.items()}))


def _pattern(name: str) -> str:
    return _NUMBER.sub("{i}", name)


def _translate(name: str) -> str:
    layer = _NUMBER.search(name)
    ours = NAMES[_pattern(name)]
    return ours.replace("{i}", layer.group()) if layer else ours


def _listing(tensors: Mapping[str, StoredTensor]) -> str:
    """One line a pattern, with dtype, shape and how many tensors follow it."""
    lines: dict[str, int] = {}
    for name, tensor in sorted(tensors.items()):
        line = f"  {_pattern(name)} {tensor.dtype} {list(tensor.shape)}"
        lines[line] = lines.get(line, 0) + 1
    return "\n".join(line if count == 1 else f"{line} x{count}" for line, count in lines.items())


OFFICIAL = Layout(name="official", transfer=codes_shape, space=space_of_codes, arrange=_arrange)
