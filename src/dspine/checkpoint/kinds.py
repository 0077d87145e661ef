"""Drafters of the other methods, in our own layout.

One rule: config.json names the kind and holds exactly the sizes of its class; the weights are exactly the parameters of
its network, by the names that SpecForge's layout has for them (the backbone's without a prefix).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dspine.checkpoint.fields import Fields
from dspine.checkpoint.keys import FORMAT
from dspine.checkpoint.schema import Shapes, file_name
from dspine.drafter.config import BackboneConfig
from dspine.drafter.registry import KINDS, Network, kind_for, kind_of
from dspine.errors import CheckpointError, ConfigError

SIZES = "drafter_config"
LATER = frozenset({"confidence"})  # sizes that older files do not name: they had no such thing
KNOWN = frozenset({"architectures", SIZES, FORMAT})


def kind_in(raw: Mapping[str, Any], file: Path) -> str | None:
    """The kind that a config.json of ours names; None: it names none, as DSpine's do not.

    Raises:
        CheckpointError: a kind that this program does not know.
    """
    section = raw.get(FORMAT)
    if not isinstance(section, Mapping) or "kind" not in section:
        return None
    kind = section["kind"]
    if kind not in KINDS or kind == "dspine":
        raise CheckpointError(
            f"{file}: {FORMAT}.kind is {kind!r}, this program knows {', '.join(k for k in KINDS if k != 'dspine')}",
            "Update dspine, or fetch the file again.",
        )
    return str(kind)


def sizes_in(raw: Mapping[str, Any], file: Path, kind: str) -> BackboneConfig:
    """The sizes of a drafter of a kind.

    Raises:
        CheckpointError: one is missing, wrong, or not known.
    """
    section, of_kind = Fields(raw, file).section(SIZES), KINDS[kind].config
    known = {field.name: field for field in fields(of_kind)}
    if unknown := sorted(section.raw.keys() - known.keys()):
        raise section.error(unknown[0], f"is no size of a {KINDS[kind].title} drafter", f"It has {', '.join(known)}.")
    sizes = {name: _size(section, field) for name, field in known.items()}
    try:
        return of_kind(**sizes)
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error.what}", error.fix) from error


def _size(section: Fields, field: Field[Any]) -> Any:
    if field.name not in section.raw and field.name in LATER and field.default is False:
        return False
    if field.name not in section.raw:
        raise section.error(field.name, "is missing", "Fetch the file again.")
    value, default = section.raw[field.name], field.default
    assert default is not MISSING
    if value is None and "None" in str(field.type):
        return None
    if isinstance(default, tuple):
        if isinstance(value, list) and all(type(each) is int for each in value):
            return tuple(value)
        raise section.error(field.name, f"is {value!r}, not a list of integers", "Correct it.")
    wanted = int if default is None else type(default)
    if type(value) is wanted or (wanted is float and type(value) is int):
        return wanted(value)
    raise section.error(field.name, f"is {value!r}, not {wanted.__name__}", "Correct it.")


def shapes_of(config: BackboneConfig, rows: int | None) -> Shapes:
    """Shape of every tensor in the file.

    Args:
        rows: size of a restricted draft vocabulary; None: the whole one.
    """
    with torch.device("meta"):
        ids = None if rows is None else torch.arange(rows)
        drafter = kind_for(config).build(config, nn.Identity(), torch.empty(config.vocab_size, config.hidden_size), ids)
    return {file_name(name): tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}


def build(
    config: BackboneConfig,
    loaded: Mapping[str, Tensor],
    embedding: nn.Module,
    head: Tensor,
    ids: Tensor | None,
    dtype: torch.dtype,
) -> Network:
    """The network, with the loaded weights in `dtype`."""
    with torch.random.fork_rng():  # the first values are overwritten: they may not move the caller's random state
        drafter = kind_for(config).build(config, embedding, head, ids)
    state = {name: loaded[file_name(name)].to(dtype) for name in drafter.state_dict()}
    drafter.load_state_dict(state, strict=True, assign=True)
    return drafter


def config_json(drafter: Network) -> dict[str, Any]:
    """What config.json says of a drafter's sizes."""
    return {"architectures": [f"{KINDS[kind_of(drafter)].title}DraftModel"], SIZES: asdict(drafter.config)}
