"""What the page is made of: sections of charts, tables and answers.

One rule: a section says what its figures were measured on, and with which definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from dspine.report.charts import Chart

HIDDEN = ("versions", "head_digest", "template_digest", "digests", "tasks", "drafters")


@dataclass(frozen=True)
class Grid:
    """A table: its columns, and rows of as many cells; the first column names the row.

    words: how many columns, from the first, hold words; the others hold numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True)
class Section:
    """A part of the page.

    anchor: what links name it. says: how to read it. measured_on: heads of the files, each behind a line that opens.
    answers: lines of a file of decoded answers.
    """

    anchor: str
    title: str
    says: str
    charts: Sequence[Chart] = ()
    grids: Sequence[Grid] = ()
    measured_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answers: Sequence[Mapping[str, Any]] = ()


def facts(measured_on: Mapping[str, Any], *more: str) -> str:
    """Words for what a file was measured on, without digests and versions."""
    left_out = (*HIDDEN, *more)
    found = ", ".join(
        f"{key} {value}" for key, value in measured_on.items() if value is not None and key not in left_out
    )
    return f"Conditions: {found}"


def called(name: str) -> str:
    """A drafter's name for a legend: of a folder its last two parts, without the "drafter" that a run ends in."""
    parts = [part for part in PurePath(name).parts if part not in ("drafter", "/")]
    return "/".join(parts[-2:]) or name
