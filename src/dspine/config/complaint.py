"""What is wrong with a recipe, in the words of its YAML.

One rule: a fault is named by its place in the YAML; an unknown key leads to the one that it looks like, or to the known
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from dspine.config.recipe import Recipe
from dspine.config.section import Section


def complaint(error: Mapping[str, Any]) -> str:
    """What is wrong, in words.

    Args:
        error: as pydantic has it.
    """
    location = _untagged(error["loc"])
    name = ".".join(map(str, location)) or "recipe"
    if error["type"].startswith("union_tag"):
        key = error["ctx"]["discriminator"].strip("'")
        return f"'{name}.{key}': {error['msg']}"
    if error["type"] == "extra_forbidden":
        meant = _meant(error["loc"])
        return f"unknown key {name!r}" + (f": did you mean {meant!r}?" if meant else "")
    if error["type"] == "missing":
        return f"{name!r} is missing"
    return f"{name!r}: {error['msg'].removeprefix('Value error, ')}"


def _meant(location: tuple[str | int, ...]) -> str | None:
    """The known key that an unknown one looks like."""
    known = _section_at(location[:-1]).model_fields
    return next(iter(get_close_matches(str(location[-1]), known, n=1)), None)


def known_keys(error: Mapping[str, Any]) -> str | None:
    """The keys of the section in which one is unknown and like none of them."""
    location = tuple(error["loc"])
    if error["type"] != "extra_forbidden" or _meant(location):
        return None
    section = ".".join(str(key) for key in _untagged(location[:-1]) if isinstance(key, str)) or "a recipe"
    return f"Keys of {section}: {', '.join(_section_at(location[:-1]).model_fields)}."


def _untagged(location: Iterable[str | int]) -> tuple[str | int, ...]:
    """A place as the YAML has it: pydantic puts in which of several sections it took one for."""
    place = tuple(location)
    return tuple(key for index, key in enumerate(place) if len(_sections_at(place[:index])) < 2)


def _section_at(location: tuple[str | int, ...]) -> type[Section]:
    """The section a place of the YAML belongs to."""
    return _sections_at(location)[0]


def _sections_at(location: tuple[str | int, ...]) -> list[type[Section]]:
    """The sections that a place may be: several where the next key says which one; none for a value."""
    sections: list[type[Section]] = [Recipe]
    for key in location:
        if isinstance(key, int):
            continue
        if len(sections) > 1:
            sections = [one for one in sections if key in get_args(one.model_fields["builder"].annotation)]
            continue
        field = sections[0].model_fields.get(key) if sections else None
        annotation = None if field is None else field.annotation
        parts = [annotation, *get_args(annotation)]
        sections = [part for part in parts if isinstance(part, type) and issubclass(part, Section)]
    return sections
