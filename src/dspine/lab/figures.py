"""The pictures of a comparison: acceptance length with intervals, acceptance by place, time of a round.

One rule: readable without colour. Bars carry their numbers, curves their own marks and line styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dspine.lab.comparison import ALL, TEMPERATURES
from dspine.lab.table import Line

MARKS = "osD^vPX*"
STYLES = ("-", "--", "-.", ":")
HATCHES = ("", "//")


def draw(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Write the figures as PNG and say where they lie."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, paint in (("tau", _tau), ("places", _places), ("round", _round)):
        shown = Figure(figsize=(8, 4.5), layout="constrained")
        axes = shown.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        paint(axes, lines)
        path = folder / f"{name}.png"
        shown.savefig(path, dpi=150)
        drawn.append(path)
    return drawn


def _tau(axes: Axes, lines: Sequence[Line]) -> None:
    width = 0.8 / len(TEMPERATURES)
    for offset, temperature in enumerate(TEMPERATURES):
        taus = [line.tau[temperature][ALL] for line in lines]
        reach = [[tau.mean - tau.low for tau in taus], [tau.high - tau.mean for tau in taus]]
        at = [place + offset * width for place in range(len(lines))]
        bars = axes.bar(
            at,
            [tau.mean for tau in taus],
            width,
            yerr=reach,
            capsize=3,
            label=f"T = {temperature:g}",
            hatch=HATCHES[offset],
            color=f"C{offset}",
            edgecolor="white",
        )
        axes.bar_label(bars, [f"{tau.mean:.2f}" for tau in taus], label_type="center", color="white", fontsize=9)
    axes.set_xticks([place + width / 2 for place in range(len(lines))], [line.title for line in lines])
    axes.set_ylabel("acceptance length, tokens a round")
    axes.legend(frameon=False)


def _places(axes: Axes, lines: Sequence[Line]) -> None:
    for number, line in enumerate(lines):
        places = range(1, len(line.places) + 1)
        shares = [place.conditional for place in line.places]
        mark, style = MARKS[number % len(MARKS)], STYLES[number % len(STYLES)]
        axes.plot(places, shares, label=line.title, marker=mark, linestyle=style)
    axes.set_xlabel("place in the block")
    axes.set_ylabel("accepted, of the candidates that were reached (T = 0)")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, ncols=2)


def _round(axes: Axes, lines: Sequence[Line]) -> None:
    left = [0.0] * len(lines)
    titles = [line.title for line in lines]
    for number, part in enumerate(("verify", "draft", "other")):
        spent = [getattr(line, part) for line in lines]
        axes.barh(titles, spent, left=left, label=part, hatch=("", "//", "..")[number], edgecolor="white")
        left = [so_far + more for so_far, more in zip(left, spent, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a round, one request")
    axes.legend(frameon=False)
