"""JSON lines, read strictly.

One rule: a fault is named with its file and line, and a last line that a kill cut off is told from one that is wrong.
"""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dspine.errors import DataError


def json_lines(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield `(n, place, object)` of every line that is not blank; `place` is "file, line n".

    Raises:
        DataError: no such file, not UTF-8, or a line that is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            for number, read in enumerate(file, start=1):
                line = read.removeprefix(BOM_UTF8) if number == 1 else read  # editors on Windows write one
                if line.strip():
                    place = f"{path}, line {number}"
                    yield number, place, _json_object(line, place)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "It must be a JSONL file.") from error


def _json_object(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 (byte {error.start})", "Save the file as UTF-8.") from error
    except json.JSONDecodeError as error:
        what = f"{place}: not JSON: {error.msg} at column {error.colno}"
        if line.endswith(b"\n"):
            raise DataError(what) from error
        # Our own writer ends every row with a newline: this one was cut off by a kill or a full disk.
        fix = "The last line is cut off: run the command that writes this file again, it goes on from there."
        raise DataError(what, fix) from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: a {type(row).__name__} where a JSON object should be")
    return row


def half_character(text: str) -> bool:
    """Whether a text holds half of a surrogate pair, as JSON may ("\\ud83d"): no file and no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def finite(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: null and "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
