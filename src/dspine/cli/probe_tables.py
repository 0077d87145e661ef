"""The tables of `dspine probe`, from the lines of its file of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dspine.cli.console import titled

Lines = Sequence[dict[str, Any]]


def tables(what: str, lines: Lines) -> list[Table]:
    """What a probe found."""
    return {"reader": _reader, "timing": _timing, "predecessor": _predecessor, "injection": _injection}[what](lines)


def _reader(lines: Lines) -> list[Table]:
    groups = lines[0]["groups"]
    table = _table(
        "Tokens read right, of all; 95 % over answers", "read from", *(f"places {g['from']}-{g['to']}" for g in groups)
    )
    for line in lines:
        name = f"layer {line['layer']}" if line["kind"] == "layer" else "the drafter's own head"
        table.add_row(name, *(f"{_share(group['accuracy'])} ({_ends(group['interval'])})" for group in line["groups"]))
    return [table]


def _timing(lines: Lines) -> list[Table]:
    first = lines[0]
    title = (
        f"Correct tokens in a row behind place {first['place']} as the new anchor; {first['blocks']} blocks, in "
        f"{first['differing']} of which predictions and correct prefix differ"
    )
    table = _table(title, "layers with the correct prefix", "correct", "gain", "95 %")
    for line in lines:
        gain = "-" if line["gain"] is None else f"{100 * line['gain']:+.1f} %"
        low, high = line["interval"]["low"], line["interval"]["high"]
        ends = "-" if low is None else f"{100 * low:+.1f} to {100 * high:+.1f}"
        table.add_row(line["schedule"], f"{line['correct']:.3f}", gain, ends)
    return [table]


def _predecessor(lines: Lines) -> list[Table]:
    contents = [line for line in lines if line["kind"] == "content"]
    places = list(dict.fromkeys(line["place"] for line in contents))
    content = _table("Successors that are right; 95 % over answers", "history", "predecessor", *_places(places))
    for key in dict.fromkeys((line["history"], line["predecessor"]) for line in contents):
        found = [line for line in contents if (line["history"], line["predecessor"]) == key]
        content.add_row(*key, *(f"{_share(line['accuracy'])} ({_ends(line['interval'])})" for line in found))
    entries = [line for line in lines if line["kind"] == "entry"]
    entry = _table(
        "Successors that are right, the predecessor predicted but for these layers",
        "history",
        "correct enters at",
        *_places(places),
    )
    for key in dict.fromkeys((line["history"], line["entry"]) for line in entries):
        found = [line for line in entries if (line["history"], line["entry"]) == key]
        entry.add_row(*key, *(_share(line["accuracy"]) for line in found))
    return [content, entry]


def _injection(lines: Lines) -> list[Table]:
    layers = [line for line in lines if line["kind"] == "layer"]
    found = []
    for name, title in (("gate", "Openness of the gates, mean"), ("cosine", "Cosine to the right token's code, mean")):
        if layers[0][name] is not None:
            table = _table(f"{title}, by layer and place", "layer", *map(str, range(1, 1 + len(layers[0][name]))))
            for line in layers:
                table.add_row(str(line["layer"]), *map(_number, line[name]))
            found.append(table)
    for way, title in (("injection", "by injection alone"), ("altogether", "by injection and attention")):
        spread = [line for line in lines if line["kind"] == "influence" and line["way"] == way]
        if spread:
            heads = [f"+{distance}" for distance in range(len(spread[0]["distances"]))]
            table = _table(f"Change of the state so many places later, relative, {title}", "layer", *heads)
            for line in spread:
                table.add_row(str(line["layer"]), *map(_number, line["distances"]))
            found.append(table)
    return found


def _table(title: str, *columns: str) -> Table:
    table = titled(title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _places(places: Sequence[int]) -> list[str]:
    return [f"place {place}" for place in places]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _ends(interval: dict[str, float]) -> str:
    return f"{100 * interval['low']:.0f}-{100 * interval['high']:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
