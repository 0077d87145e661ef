"""Which target layers a public config taps, in either of the two conventions.

One rule: the name of the field and its place tell what its numbers mean, never their values. Here id k is the output
of decoder layer k, from 0 (`hidden_states[k + 1]`). Sources: z-lab's DFlash, SpecForge, speculators, EAGLE-3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspine.checkpoint.fields import Fields

# (section or None, field, what to take away to get the number of a decoder layer)
_FIELDS = (
    ("dflash_config", "target_layer_ids", 0),
    ("dspark_config", "target_layer_ids", 0),
    (None, "target_layer_ids", 0),
    (None, "aux_hidden_state_layer_ids", 1),  # speculators: an index of hidden_states
    (None, "eagle_aux_hidden_state_layer_ids", 1),
    ("eagle_config", "eagle_aux_hidden_state_layer_ids", 0),  # SpecForge, SGLang: the output of a layer
)
_FIX = (
    "In target_layer_ids (and SpecForge's eagle_config) k names the output of decoder layer k, from 0; in speculators' "
    "aux_hidden_state_layer_ids k + 1 does. The last layer is never tapped: its output is kept normed in one place and "
    "raw in another."
)


def taps_in(config: Fields, layers: int | None) -> tuple[int, ...] | None:
    """The tapped decoder layers; None if no field names any.

    Args:
        layers: of the target; None if it is not known.

    Raises:
        CheckpointError: two fields that disagree, or ids that no target (or not this one) has.
    """
    given: dict[str, tuple[int, ...]] = {}
    for section, key, less in _FIELDS:
        place = config.section(section) if section else config
        if (ids := place.raw.get(key)) is not None:
            given[f"{section}.{key}" if section else key] = _ids(place, key, ids, less, layers)
    if len(set(given.values())) > 1:
        first, second = list(given)[:2]
        raise config.error(second, f"and {first} name different decoder layers: {given[second]}, {given[first]}", _FIX)
    return next(iter(given.values()), None)


def eagle_default(layers: int) -> tuple[int, ...]:
    """What EAGLE-3 taps where nothing is said: the outputs of layers 1, N/2 - 1 and N - 4."""
    return (1, layers // 2 - 1, layers - 4)


def _ids(place: Fields, key: str, ids: Any, less: int, layers: int | None) -> tuple[int, ...]:
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not ids or any(type(i) is not int for i in ids):
        raise place.error(key, f"is {ids!r}, not a list of layer ids", _FIX)
    if -1 in ids and not less:
        raise place.error(key, f"is {list(ids)}: -1 is the embedding's output, which is not tapped here", _FIX)
    last = None if layers is None else layers - 2 + less
    if min(ids) < less or len(set(ids)) != len(ids) or (last is not None and max(ids) > last):
        allowed = f"{less}.." if last is None else f"{less}..{last} for a target of {layers} layers"
        raise place.error(key, f"is {list(ids)}: ids are distinct and in {allowed}", _FIX)
    return tuple(i - less for i in ids)
