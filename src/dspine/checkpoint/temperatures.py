"""The side file of a calibrated confidence: one temperature a place.

One rule: it changes no weight and may be missing; where it lies, it belongs to this drafter's confidence head, or the
folder is refused. The keys are those of SGLang's file. Source: DSpark (arXiv 2607.05147), calibration.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspine.durable import write_aside
from dspine.errors import CheckpointError

TEMPERATURES = "confidence_temperatures.json"


def write_temperatures(folder: Path, temperatures: tuple[float, ...], facts: Mapping[str, Any]) -> Path:
    """Put them beside a drafter, with what they were fitted on.

    Raises:
        DataError: the file cannot be written.
    """
    path = folder / TEMPERATURES
    content = json.dumps({"temperatures": list(temperatures), **facts}, indent=2, allow_nan=False)
    write_aside(path, (content + "\n").encode())
    return path


def read_temperatures(folder: Path, places: int) -> list[float] | None:
    """T_1..T_M of a drafter with M = `places`; None where nothing was calibrated.

    Raises:
        CheckpointError: the file holds something else.
    """
    path = folder / TEMPERATURES
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["temperatures"]
        temperatures = [float(each) for each in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} holds no temperatures ({error})", _FIX) from error
    if len(temperatures) != places or not all(0 < each < math.inf for each in temperatures):
        raise CheckpointError(
            f"{path} holds {temperatures}, and this drafter needs {places} positive temperatures", _FIX
        )
    return temperatures


_FIX = "Make it anew with dspine calibrate, or remove it: the drafter works without."
