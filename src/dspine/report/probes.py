"""What probes found, from files of `dspine probe`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dspine.report.charts import Bar, Chart, bars, bars_height, shades
from dspine.report.found import Result
from dspine.report.section import Grid, Section, called, facts

Lines = Sequence[dict[str, Any]]
SAYS = {
    "reader": "A low-rank map in front of the target's head reads the token of a place from each layer's state. Of "
    "every five answers three fit it, one chooses its step, one judges it. Share of tokens read right, 95 % over "
    "answers.",
    "timing": "A place inside the block becomes the new anchor, its token correct. The places before it are filled "
    "with the draft's predictions, or, in the layers that are named, with the correct tokens, as the target encodes "
    "them. Gain in correct tokens in a row behind it over predictions in every layer, 95 % over answers.",
    "predecessor": "The token before a place becomes the new anchor; it and the history before it are the correct ones "
    "or the draft's predictions. Share of successors that are right, 95 % over answers. Below: the block begins with "
    "the predicted one, and the layers that are named attend to the keys and values of the correct one (the part of "
    "attention alone, where a drafter hears of its anchor otherwise too, as DSpine does by codes).",
    "injection": "The pass over a block as it is drafted: mean openness of the gates, mean cosine of the state's "
    "readout to the code of the right token, and how much the states of later places change when one place's first "
    "state is exchanged for that of another block: by injection alone (attention held), and altogether.",
}


def sections(results: Sequence[Result]) -> Iterator[Section]:
    """A section for each probe."""
    shown: dict[str, Callable[[Lines, int], tuple[list[Chart], list[Grid]]]] = {
        "reader": _reader, "timing": _timing, "predecessor": _predecessor, "injection": _injection,
    }  # fmt: skip
    for number, result in enumerate(results):
        what, on = result.measured_on["probe"], result.measured_on
        lines = [line for line in result.lines if line["kind"] != "sequence"]
        if not lines:  # it was stopped before its end
            continue
        charts, grids = shown[what](lines, number)
        yield Section(
            anchor=f"probe-{what}-{number}",
            title=f"Probe: {what}, {called(on['drafter_name'])} on {on['target']}",
            says=f"{SAYS[what]} {facts(on, 'probe', 'drafter', 'temperature')}.",
            charts=charts,
            grids=grids,
            measured_on={result.path.name: on},
        )


def _reader(lines: Lines, number: int) -> tuple[list[Chart], list[Grid]]:
    names = [f"layer {line['layer']}" if line["kind"] == "layer" else "own head" for line in lines]
    columns = [f"places {group['from']}-{group['to']}" for group in lines[0]["groups"]]
    series = {column: [_percent(line["groups"][group]) for line in lines] for group, column in enumerate(columns)}
    chart = Chart(
        f"reader-{number}",
        "Tokens read right by layer and group of places",
        bars_height(len(names), columns),
        partial(bars, groups=names, series=series, label="tokens read right, %", digits=0),
    )
    rows = [[name, *(_share(group) for group in line["groups"])] for name, line in zip(names, lines, strict=True)]
    return [chart], [Grid(["read from", *columns], rows)]


def _timing(lines: Lines, number: int) -> tuple[list[Chart], list[Grid]]:
    shown = [line for line in lines if line["gain"] is not None and line["schedule"] != "none"]
    if shown:
        names = [_layers(line["schedule"]) for line in shown]
        says, label = "Gain in correct tokens in a row", "gain over predictions in every layer, %"
        found = [
            Bar(100 * line["gain"], 100 * line["interval"]["low"], 100 * line["interval"]["high"]) for line in shown
        ]
    else:  # with predictions in every layer nothing is correct: there is nothing to gain over
        names = [_layers(line["schedule"]) for line in lines]
        says = label = "Correct tokens in a row"
        found = [Bar(line["correct"]) for line in lines]
    chart = Chart(
        f"timing-{number}",
        f"{says}, by the layers that read the correct prefix",
        bars_height(len(names), ["one"]),
        partial(bars, groups=names, series={"one": found}, label=label, digits=1 if shown else 2),
    )
    rows = [
        [
            _layers(line["schedule"]),
            f"{line['correct']:.3f}",
            "-" if line["gain"] is None else f"{100 * line['gain']:+.1f} %",
            f"{line['differing']} of {line['blocks']}",
        ]
        for line in lines
    ]
    columns = ["correct prefix in", "correct in a row", "gain", "blocks whose prefix differs"]
    return [chart], [Grid(columns, rows)]


def _predecessor(lines: Lines, number: int) -> tuple[list[Chart], list[Grid]]:
    contents = [line for line in lines if line["kind"] == "content"]
    entries = [line for line in lines if line["kind"] == "entry"]
    places = [f"place {place}" for place in dict.fromkeys(line["place"] for line in contents)]
    series: dict[str, list[Bar]] = {}
    for line in contents:
        name = f"predecessor {line['predecessor']}, history {line['history']}"
        series.setdefault(name, []).append(_percent(line))
    content = Chart(
        f"predecessor-{number}",
        "Successors that are right, by what predecessor and history are",
        bars_height(len(places), list(series)),
        partial(bars, groups=places, series=series, label="successors that are right, %", digits=0),
    )
    of_entry: dict[str, list[Bar]] = {}
    for line in entries:
        if line["history"] == "correct":
            of_entry.setdefault(f"place {line['place']}", []).append(_percent(line))
    names = [_layers(name) for name in dict.fromkeys(line["entry"] for line in entries)]
    entry = Chart(
        f"entry-{number}",
        "Successors that are right, by the layers at which the correct predecessor enters, history correct",
        bars_height(len(names), list(of_entry)),
        partial(bars, groups=names, series=of_entry, label="successors that are right, %", digits=0),
    )
    return [content, entry], [
        _by_place(contents, ("history", "predecessor"), places),
        _by_place(entries, ("entry", "history"), places),
    ]


def _by_place(lines: Lines, names: tuple[str, str], places: Sequence[str]) -> Grid:
    """A row for each pair of words, a column for each place."""
    rows: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        words = tuple(_layers(line[name]) if name == "entry" else line[name] for name in names)
        rows.setdefault((words[0], words[1]), []).append(_share(line))
    heads = ["correct one enters at" if name == "entry" else name for name in names]
    return Grid([*heads, *places], [[*words, *cells] for words, cells in rows.items()], words=2)


def _injection(lines: Lines, number: int) -> tuple[list[Chart], list[Grid]]:
    layers = [line for line in lines if line["kind"] == "layer"]
    names = [f"layer {line['layer']}" for line in layers]
    charts = []
    for name, says in (("gate", "Openness of the gates"), ("cosine", "Cosine of the readout to the right code")):
        if layers[0][name] is not None:
            columns = [str(place) for place in range(1, 1 + len(layers[0][name]))]
            cells = [line[name] for line in layers]
            charts.append(_table_of(f"{name}-{number}", f"{says}, by layer and place", cells, names, columns, "place"))
    for way, says in (("injection", "by injection alone"), ("altogether", "by injection and attention")):
        cells = [line["distances"] for line in lines if line["kind"] == "influence" and line["way"] == way]
        if cells:
            columns = [f"+{distance}" for distance in range(len(cells[0]))]
            title = f"Relative change of the state so many places later, {says}"
            charts.append(_table_of(f"influence-{way}-{number}", title, cells, names, columns, "places later"))
    return charts, []


def _table_of(
    name: str, says: str, cells: Sequence[Sequence[float | None]], rows: list[str], columns: list[str], across: str
) -> Chart:
    return Chart(
        name, says, 0.8 + 0.34 * len(rows), partial(shades, cells=cells, rows=rows, columns=columns, across=across)
    )


def _percent(line: dict[str, Any]) -> Bar:
    interval = line["interval"]
    return Bar(100 * line["accuracy"], 100 * interval["low"], 100 * interval["high"])


def _share(line: dict[str, Any]) -> str:
    interval = line["interval"]
    return f"{100 * line['accuracy']:.1f} % ({100 * interval['low']:.0f}-{100 * interval['high']:.0f})"


def _layers(name: str) -> str:
    return {"none": "no layer", "all": "all layers"}.get(name, f"layer {name}" if name.isdigit() else f"layers {name}")
