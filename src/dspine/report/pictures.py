"""The charts of results as PNG files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dspine.durable import cannot_write, write_aside
from dspine.report.charts import LIGHT, Chart, png
from dspine.report.found import find
from dspine.report.sections import sections


def draw(results: Sequence[Path], folder: Path) -> list[Path]:
    """Draw what files of results have to show.

    Returns:
        the pictures.

    Raises:
        DataError: as `find`, or the folder cannot be written.
    """
    return save((chart for section in sections(find(results)) for chart in section.charts), folder)


def save(charts: Iterable[Chart], folder: Path) -> list[Path]:
    """Write charts as PNG files, in the light theme.

    Raises:
        DataError: the folder cannot be written.
    """
    drawn = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    for chart in charts:
        path = folder / f"{chart.name}.png"
        write_aside(path, png(chart, LIGHT))
        drawn.append(path)
    return drawn
