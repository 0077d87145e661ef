"""Results on disk: JSON lines under a head that says what they were measured on.

One rule: a file describes itself. Its first line names the format and everything that the figures depend on; the others
are one result each, under a key. Under the same head results are replaced key by key; another head begins anew.

    {"format": "dspine-acceptance/1", "measured_on": {...}}
    {"key": "gsm8k", ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dspine.durable import cannot_write, write_aside
from dspine.errors import DataError
from dspine.jsonl import json_lines

ACCEPTANCE = "dspine-acceptance/1"
THROUGHPUT = "dspine-throughput/1"
FORMATS = (ACCEPTANCE, THROUGHPUT)


def read_results(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head of a file of results, and its results in their order.

    Raises:
        DataError: no such file, or another kind of file.
    """
    lines = [value for _, _, value in json_lines(Path(path))]
    if not lines or lines[0].get("format") not in FORMATS:
        raise DataError(f"{path} is not a file of results ({', '.join(FORMATS)})")
    return lines[0], lines[1:]


def merge_results(
    path: Path, form: str, measured_on: Mapping[str, Any], results: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Write results, each with its "key"; what the file already holds under the same head and other keys stays.

    Returns:
        all results of the file.

    Raises:
        DataError: the file cannot be written, or it is something else.
    """
    head = {"format": form, "measured_on": finite(measured_on)}
    kept: dict[str, dict[str, Any]] = {}
    if path.exists():
        written, before = read_results(path)
        kept = {result["key"]: result for result in before} if written == json.loads(json.dumps(head)) else {}
    kept |= {result["key"]: finite(result) for result in results}
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in (head, *kept.values())]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    write_aside(path, "".join(lines).encode())
    return list(kept.values())


def finite(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: null and "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
