"""Fields of a JSON object, read strictly.

One rule: a missing or wrong field is an error that names the file, the field and the value found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspine.errors import CheckpointError


class Fields:
    """A JSON object of `file`, at the dotted place `prefix` in it."""

    def __init__(self, raw: Mapping[str, Any], file: Path, prefix: str = "") -> None:
        self.raw = raw
        self.file = file
        self._prefix = prefix

    def section(self, key: str) -> Fields:
        """The object at `key`; an absent one is empty.

        Raises:
            CheckpointError: there is something else at `key`.
        """
        inner = self.raw.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            raise self.error(key, f"is {inner!r}, not an object", "Fetch the file again.")
        return Fields(inner or {}, self.file, f"{self._prefix}{key}.")

    def value(self, key: str, section: str | None = None) -> Any:
        """What stands at `key`, in `section` if it is there, else here; null counts as missing.

        Raises:
            CheckpointError: it is missing.
        """
        places = [self.section(section).raw, self.raw] if section else [self.raw]
        for place in places:
            if place.get(key) is not None:
                return place[key]
        name = f"{section}.{key}" if section else key
        raise self.error(name, "is missing", "Fetch the file again, or take the value from the training run's config.")

    def integer(self, key: str, section: str | None = None, least: int = 1) -> int:
        value = self.value(key, section)
        if type(value) is not int or value < least:
            raise self.error(key, f"is {value!r}, not an integer of at least {least}", "Correct it.")
        return value

    def number(self, key: str) -> float:
        value = self.value(key)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise self.error(key, f"is {value!r}, not a positive number", "Correct it.")
        return float(value)

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            raise self.error(key, f"is {value!r}, not a text", "Correct it.")
        return value

    def neutral(self, harmless: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse values that change what is computed.

        Args:
            harmless: by dotted key, the values that change nothing, the usual one first; an absent key is one of them.

        Raises:
            CheckpointError: naming the field and its value.
        """
        for name, values in harmless.items():
            *outer, key = name.split(".")
            place = self.section(outer[0]) if outer else self
            if key in place.raw and place.raw[key] not in values:
                raise place.error(
                    key,
                    f"is {place.raw[key]!r}; a drafter here needs {values[0]!r}",
                    "This drafter computes something that dspine does not implement: run it where it was trained.",
                )

    def error(self, key: str, what: str, fix: str) -> CheckpointError:
        """The error that says what is wrong with the field `key` (dotted below this object)."""
        return CheckpointError(f"{self.file}: {self._prefix}{key} {what}", fix)
