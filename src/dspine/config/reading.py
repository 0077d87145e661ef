"""From a YAML file, or a shipped recipe's name, to a recipe.

One rule: read once, at the edge; what is wrong is refused with its place in the YAML.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dspine.config.complaint import complaint, known_keys
from dspine.config.recipe import Recipe
from dspine.errors import ConfigError
from dspine.shipped import places


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: a YAML file, or the name of a shipped recipe.
        overrides: "section.key=value" each, the value in YAML, applied in order.

    Raises:
        ConfigError: no such file, broken YAML, an unknown key, a missing or a wrong value.
    """
    path = find_recipe(path)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        fix = f"Give a YAML file, or a shipped recipe by its name: {', '.join(shipped_recipes())}."
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}", fix) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no recipe: its top level must be a mapping of keys")
    for override in overrides:
        _override(content, override)
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        faults = error.errors()
        listed = dict.fromkeys(known for fault in faults if (known := known_keys(fault)))
        raise ConfigError(f"{path}: " + "; ".join(map(complaint, faults)), "\n".join(listed) or None) from error


class _Loader(yaml.SafeLoader):
    """YAML, without a key that is there twice, of which the last one would count and the first would be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                what = f"the key {key.value!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a shipped recipe ("nano"), or the path as it was given (./nano for one of that name)."""
    if isinstance(name_or_path, str) and name_or_path in (shipped := shipped_recipes()):
        return shipped[name_or_path]
    return Path(name_or_path).expanduser()


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with dspine, by name."""
    return {path.stem: path for folder in reversed(places("recipes")) for path in sorted(folder.glob("*.yaml"))}


def _override(content: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override!r} is not of the form section.key=value")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML: {error}") from error
    place = content
    for key in keys[:-1]:
        if place.get(key) is None:
            place[key] = {}
        place = place[key]
        if not isinstance(place, dict):
            raise ConfigError(f"--set {override!r}: {key} is not a section of the recipe")
    place[keys[-1]] = value
