"""Acceptance by task and drafter, and by place, from files of `dspine eval` and `dspine lab`.

One rule: only what was measured alike stands in one picture: the same target, number format, temperature and cap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dspine.report.charts import Bar, Chart, Point, bars, bars_height, curves, legend_height
from dspine.report.found import Result
from dspine.report.section import Grid, Section, called, facts

ALIKE = ("target", "head_digest", "dtype", "device", "temperature", "max_new_tokens", "split", "turns", "thinking")
SWEEP = 3  # temperatures that make a curve
FEW = 10  # candidates that make a share


def sections(results: Sequence[Result]) -> Iterator[Section]:
    """A section for each set of conditions, and one for each that was swept over temperatures."""
    for number, group in enumerate(_alike(results, ALIKE)):
        yield _section(group, number)
    others = [name for name in ALIKE if name != "temperature"]
    for number, group in enumerate(_alike(results, others)):
        if len({result.measured_on["temperature"] for result in group}) >= SWEEP:
            yield _over_temperature(group, number)


def _alike(results: Sequence[Result], names: Sequence[str]) -> list[list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(str([result.measured_on.get(name) for name in names]), []).append(result)
    return list(groups.values())


def _over_temperature(group: Sequence[Result], number: int) -> Section:
    by_temperature = _alike(group, ["temperature"])
    series: dict[str, list[Point]] = {}
    for same in sorted(by_temperature, key=lambda results: float(results[0].measured_on["temperature"])):
        for name, result in _names(same).items():
            wholes = [line["summary"]["whole"] for line in result.lines]
            rounds = sum(whole["rounds"] for whole in wholes)
            kept = sum(whole["tau"] * whole["rounds"] for whole in wholes if whole["rounds"])
            if rounds:
                series.setdefault(name, []).append(Point(result.measured_on["temperature"], kept / rounds))
    measured_on = group[0].measured_on
    return Section(
        anchor=f"temperature-{number}",
        title=f"Acceptance over temperature, {measured_on['target']}",
        says="tau = kept tokens / rounds, pooled over all tasks. "
        f"{facts(measured_on, 'drafter', 'drafter_name', 'verify', 'temperature', 'seed')}.",
        charts=[
            Chart(
                f"temperature-{number}",
                "Acceptance length against temperature",
                3.0 + legend_height(list(series)),
                partial(curves, series=series, across="temperature", up="tau: tokens kept a round"),
            )
        ],
    )


def _section(group: Sequence[Result], number: int) -> Section:
    measured_on = group[0].measured_on
    names = _names(group)
    tasks = list(dict.fromkeys(line["task"] for result in group for line in result.lines))
    of = {name: {line["task"]: line for line in result.lines} for name, result in names.items()}
    shown = {name: [_bar(lines.get(task)) for task in tasks] for name, lines in of.items()}
    stand = {
        name: curve([place for line in lines.values() for place in line["summary"]["whole"]["places"]])
        for name, lines in of.items()
    }
    t = f"T = {measured_on['temperature']:g}"
    where = f"{measured_on['target']}, {t}"
    title = f"Acceptance, {where}, {measured_on['dtype']}, at most {measured_on['max_new_tokens']} tokens"
    charts = [
        Chart(
            f"acceptance-{number}",
            f"Acceptance length by task and drafter, {where}, with 95 % intervals",
            bars_height(len(tasks), list(shown)),
            partial(bars, groups=tasks, series=shown, label="tau: tokens kept a round"),
        ),
    ]
    if any(stand.values()):
        charts.append(
            Chart(
                f"places-{number}",
                f"Share of candidates that stand, by place in the block, {where}",
                3.0 + legend_height(list(stand)),
                partial(by_place, series=stand),
            )
        )
    return Section(
        anchor=f"acceptance-{number}",
        title=title,
        says="tau = kept tokens / rounds, pooled over the answers of a task; the token of the prefill is in no round. "
        "Intervals are 95 % bootstrap ones over requests. By place: of the candidates whose predecessors all stood, "
        f"those that stood too, over all tasks, where there were ten or more. "
        f"{facts(measured_on, 'drafter', 'drafter_name', 'verify')}.",
        charts=charts,
        grids=[_table(tasks, of)],
        measured_on={str(result.path.name): result.measured_on for result in group},
    )


def _names(group: Sequence[Result]) -> dict[str, Result]:
    """The drafters by name; two of one name, or one verified in several ways, are told apart."""
    found: dict[str, Result] = {}
    for result in group:
        on = result.measured_on
        name = called(str(on.get("drafter_name", on.get("drafter", "drafter"))))
        if on.get("verify") not in (None, "full"):
            name += f" (verify {on['verify']})"
        if name in found:
            name += f" {str(on.get('drafter'))[:8]}"
        while name in found:
            name += "'"
        found[name] = result
    return found


def _bar(line: dict[str, Any] | None) -> Bar:
    if line is None:
        return Bar(None)
    whole = line["summary"]["whole"]
    return Bar(whole["tau"], whole["interval"]["low"], whole["interval"]["high"])


def curve(places: Sequence[dict[str, Any]]) -> list[Point]:
    """Accepted of those reached, by place, pooled; none where fewer than ten were reached."""
    reached: dict[int, int] = {}
    accepted: dict[int, int] = {}
    for place in places:
        reached[place["place"]] = reached.get(place["place"], 0) + place["reached"]
        accepted[place["place"]] = accepted.get(place["place"], 0) + place["accepted"]
    return [Point(place, accepted[place] / count) for place, count in sorted(reached.items()) if count >= FEW]


def by_place(axes: Axes, series: dict[str, list[Point]]) -> None:
    """Such curves."""
    curves(axes, series, "place in the block", "accepted, of those reached")
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _table(tasks: Sequence[str], of: dict[str, dict[str, Any]]) -> Grid:
    rows = []
    for task in tasks:
        for name, lines in of.items():
            if (line := lines.get(task)) is None:
                continue
            summary, lossless, accuracy = line["summary"], line["lossless"], line["accuracy"]
            whole = summary["whole"]
            rows.append(
                [
                    task,
                    name,
                    str(summary["requests"]),
                    _number(whole["tau"]),
                    f"{_number(whole['interval']['low'])}-{_number(whole['interval']['high'])}",
                    _number(whole["tau_macro"]),
                    _number(whole["tau_sglang"]),
                    f"{lossless['identical']} of {lossless['compared']}" if lossless else "-",
                    f"{accuracy['right']} of {accuracy['scored']}" if accuracy else "-",
                ]
            )
    columns = ["task", "drafter", "prompts", "tau", "95 %", "tau z-lab", "tau SGLang", "same output", "right"]
    return Grid(columns, rows, words=2)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
