"""The kinds of charts: bars with intervals, curves, stacked bars, and tables of shades.

One rule: readable without colour. Bars carry hatches and their numbers, curves marks and line styles, shades their
numbers. A chart is drawn in the colours of a theme, so that it lies on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind tell apart; the last one stands in for black on either ground.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C8C8C", "#B8A800")
MARKS = "osD^vPX*"
STYLES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
WIDTH = 5.4  # inches: on a phone the text is still large enough


@dataclass(frozen=True)
class Theme:
    """ink: of text and lines. ground: what all lies on, as in the page."""

    name: str
    ink: str
    ground: str


LIGHT = Theme("light", "#1d1d1f", "#ffffff")
DARK = Theme("dark", "#ececf0", "#16171a")


@dataclass(frozen=True)
class Chart:
    """A picture to be drawn.

    name: of its file. says: what it shows, for those who do not see it. height: inches. paint: draws it.
    """

    name: str
    says: str
    height: float
    paint: Callable[[Axes], None]


@dataclass(frozen=True)
class Bar:
    """A value with the ends of its interval; None where there is nothing to show, or no interval."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Point:
    """A point of a curve, and what it reaches to where it has an interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


def png(chart: Chart, theme: Theme) -> bytes:
    """The picture, on the theme's ground."""
    with _theme(theme):
        shown = Figure(figsize=(WIDTH, chart.height), layout="constrained")
        axes = shown.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        chart.paint(axes)
        out = BytesIO()
        shown.savefig(out, format="png", dpi=144, facecolor=theme.ground, metadata={"Software": ""})
    return out.getvalue()


def bars(axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Bar]], label: str, digits: int = 2) -> None:
    """Horizontal bars, one group under the other, a bar of each series in each.

    Args:
        series: by name, a bar a group.
        label: of the axis of values.
    """
    thick = 0.8 / len(series)
    for number, (name, row) in enumerate(series.items()):
        at = [group + number * thick - 0.4 + thick / 2 for group in range(len(groups))]
        values = [0.0 if bar.value is None else bar.value for bar in row]
        axes.barh(at, values, thick * 0.92, label=name, color=_colour(number), hatch=_hatch(number),
                  edgecolor=matplotlib.rcParams["axes.facecolor"], linewidth=0)  # fmt: skip
        for place, bar in zip(at, row, strict=True):
            if bar.value is None:
                continue
            end = bar.value if bar.high is None else max(bar.high, bar.value)
            if bar.low is not None and bar.high is not None:
                reach = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
                axes.errorbar(bar.value, place, xerr=reach, color=_ink(), capsize=2.5, linewidth=1)
            shown = f" {bar.value:.{digits}f}"
            axes.annotate(shown, (max(end, 0.0), place), xytext=(2, 0), textcoords="offset points", va="center", size=8)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set_xlabel(label)
    if len(series) > 1:
        _legend(axes, list(series))


def bars_height(groups: int, names: Sequence[str]) -> float:
    """Inches that the bars of so many groups and of series of these names need."""
    return 0.9 + 0.24 * max(1.4, len(names)) * groups + legend_height(names)


def legend_height(names: Sequence[str]) -> float:
    """Inches that a legend needs."""
    return 0.24 * -(-len(names) // _columns(names)) if len(names) > 1 else 0.0


def curves(axes: Axes, series: Mapping[str, Sequence[Point]], across: str, up: str) -> None:
    """Curves through points, with the intervals that these have."""
    for number, (name, points) in enumerate(series.items()):
        axes.plot(
            [point.x for point in points],
            [point.y for point in points],
            label=name,
            color=_colour(number),
            marker=MARKS[number % len(MARKS)],
            linestyle=STYLES[number % len(STYLES)],
            markersize=5,
        )
        for point in points:
            if point.low is not None and point.high is not None:
                reach = [[max(0.0, point.y - point.low)], [max(0.0, point.high - point.y)]]
                axes.errorbar(point.x, point.y, yerr=reach, color=_colour(number), capsize=2, linewidth=1)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", alpha=0.25)
    if len(series) > 1:
        _legend(axes, list(series))


def stacked(axes: Axes, rows: Sequence[str], parts: Mapping[str, Sequence[float]], label: str) -> None:
    """A horizontal bar a row, made of parts."""
    left = [0.0] * len(rows)
    for number, (name, values) in enumerate(parts.items()):
        axes.barh(rows, values, left=left, label=name, color=_colour(number), hatch=_hatch(number),
                  edgecolor=matplotlib.rcParams["axes.facecolor"], linewidth=0, height=0.62)  # fmt: skip
        left = [so_far + more for so_far, more in zip(left, values, strict=True)]
    for place, whole in enumerate(left):
        axes.annotate(f" {whole:.1f}", (whole, place), xytext=(2, 0), textcoords="offset points", va="center", size=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(label)
    _legend(axes, list(parts))


def shades(
    axes: Axes, cells: Sequence[Sequence[float | None]], rows: Sequence[str], columns: Sequence[str], across: str
) -> None:
    """A table of numbers, each on a shade of its size."""
    known = [value for row in cells for value in row if value is not None]
    top = max(known, default=1.0) or 1.0
    bottom = min(0.0, min(known, default=0.0))
    filled = [[float("nan") if value is None else value for value in row] for row in cells]
    axes.imshow(filled, cmap="cividis", vmin=bottom, vmax=top, aspect="auto")
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            if value is None:
                axes.text(column, row, "-", ha="center", va="center", size=8)
                continue
            dark = (value - bottom) / (top - bottom) < 0.55
            said = "0" if value == 0 else f"{value:.2f}"
            axes.text(column, row, said, ha="center", va="center", size=8, color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(across)


def _legend(axes: Axes, names: Sequence[str]) -> None:
    axes.legend(
        frameon=False,
        ncols=_columns(names),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        fontsize=8.5,
        borderaxespad=0.2,
        handlelength=2.6,
    )


def _columns(names: Sequence[str]) -> int:
    """Of a legend that is no wider than the picture."""
    return max(1, min(len(names), 58 // (max(map(len, names)) + 8)))


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _hatch(number: int) -> str:
    """Another one for the same colour, where colours come round again."""
    return HATCHES[(number + 3 * (number // len(COLOURS))) % len(HATCHES)]


def _ink() -> str:
    return str(matplotlib.rcParams["text.color"])


@contextmanager
def _theme(theme: Theme) -> Iterator[None]:
    named = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    settings: dict[Any, Any] = {
        **dict.fromkeys(named, theme.ink),
        "axes.facecolor": theme.ground,
        "font.size": 9.5,
        "font.family": "DejaVu Sans",
        "hatch.linewidth": 0.6,
    }
    with matplotlib.rc_context(settings):
        yield
