"""The switches of the design in a DSpine drafter's config.json: what is not as the paper has it.

One rule: a switch that stands as the paper has it is not written, so that the files of such drafters follow the
published schema to the letter; one that does not is refused where a layout has no word for it. Source: DSpine
(arXiv 2609.36173).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspine.checkpoint.fields import Fields
from dspine.drafter.config import SWITCHES, DSpineConfig
from dspine.errors import CheckpointError

SECTION = "dspine_config"
CAUSAL = "is_causal"  # at the top level and in dflash_config, as published configs have it
WRITTEN = tuple(name for name in SWITCHES if name != CAUSAL)  # in `SECTION`


def written(config: DSpineConfig) -> dict[str, Any]:
    """What `dspine_config` says of the switches."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in config.switched.items() if name in WRITTEN}


def read(fields: Fields) -> dict[str, Any]:
    """The switches of a config.json, those that it names.

    Raises:
        CheckpointError: one of the wrong type, or rows of the block said to see each other in two ways.
    """
    section = fields.section(SECTION)
    found: dict[str, Any] = {CAUSAL: _causal(fields)}
    for name in WRITTEN:
        if section.raw.get(name) is not None:
            found[name] = _value(section, name)
    return found


def _causal(fields: Fields) -> bool:
    places = {CAUSAL: fields.raw.get(CAUSAL), "dflash_config.causal": fields.section("dflash_config").raw.get("causal")}
    given = {name: value for name, value in places.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, bool):
            raise fields.error(name, f"is {value!r}, neither true nor false", "Correct it.")
    if len(set(given.values())) > 1:
        raise fields.error(CAUSAL, f"is said twice, differently: {given}", "Keep the one of the training run.")
    return next(iter(given.values()), True)


def _value(section: Fields, name: str) -> Any:
    value, default = section.raw[name], getattr(DSpineConfig, name)
    if default is None:
        if isinstance(value, list) and all(type(layer) is int for layer in value):
            return tuple(value)
        raise section.error(name, f"is {value!r}, not a list of integers", "Correct it.")
    if type(value) is not type(default):
        raise section.error(name, f"is {value!r}, not {type(default).__name__}", "Correct it.")
    return value


def refuse_switched(config: DSpineConfig, layout: str) -> None:
    """Refuse to write a drafter in a layout whose readers would compute another one.

    Raises:
        CheckpointError: naming every switch that does not stand as the paper has it.
    """
    switched: Mapping[str, Any] = config.switched
    if switched:
        listed = ", ".join(f"{name} {value}" for name, value in switched.items())
        raise CheckpointError(
            f"{layout}'s layout cannot express this drafter: {listed}",
            "Use it with dspine, or train one whose switches stand as the paper has them.",
        )
