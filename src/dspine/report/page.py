"""One page of everything: HTML that needs no network, no script and no other file.

One rule: pictures lie in the page twice, for light and for dark, and the reader's own setting chooses.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from dspine import __version__
from dspine.durable import write_aside
from dspine.report.charts import DARK, png
from dspine.report.decoded import MARKS
from dspine.report.found import Result, find
from dspine.report.pictures import save
from dspine.report.section import Section
from dspine.report.sections import sections

PAGE = "index.html"
FIGURES = "figures"


def write(runs: Sequence[Path], out: Path, title: str) -> tuple[Path, list[Path]]:
    """Make the page of runs, and the pictures beside it.

    Args:
        runs: files of results, or folders that hold some.

    Returns:
        the page, and the pictures.

    Raises:
        DataError: as `find`, or the folder cannot be written.
    """
    results = find(runs)
    shown = sections(results)
    pictures = save((chart for section in shown for chart in section.charts), out / FIGURES)
    page = out / PAGE
    write_aside(page, html(shown, results, title, {path.stem: path.read_bytes() for path in pictures}).encode())
    return page, pictures


def html(shown: Sequence[Section], results: Sequence[Result], title: str, light: Mapping[str, bytes]) -> str:
    """The page.

    Args:
        light: the charts by name, as they are drawn in the light theme.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["light"] = lambda chart: _embedded(light[chart.name])
    environment.filters["dark"] = lambda chart: _embedded(png(chart, DARK))
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    folder = files("dspine.report")
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        sections=shown,
        results=results,
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        marks=MARKS,
    )


def _embedded(picture: bytes) -> str:
    return f"data:image/png;base64,{b64encode(picture).decode()}"
