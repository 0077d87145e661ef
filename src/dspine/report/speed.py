"""Throughput against concurrency, and a round's time by stage, from files of `dspine bench` and `dspine lab`.

One rule: a ratio is of one turn and one process; tokens a second of several files are never put into one picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from dspine.report.charts import Bar, Chart, Point, bars, bars_height, curves, legend_height, stacked
from dspine.report.found import Result
from dspine.report.section import Grid, Section, facts

Lines = Sequence[dict[str, Any]]
STAGES = ("draft", "verify", "commit")  # in the order of a round


def sections(results: Sequence[Result]) -> Iterator[Section]:
    """A section for each file."""
    for number, result in enumerate(results):
        yield _section(result, number)


def _section(result: Result, number: int) -> Section:
    runs = [line for line in result.lines if line["kind"] == "run"]
    ratios = [line for line in result.lines if line["kind"] == "ratio"]
    rounds = [line for line in result.lines if line["kind"] == "stages" and line["round"]]
    charts = []
    if runs:
        charts.append(_throughput(runs, number))
    if ratios:
        charts.append(_speedup(ratios, number))
    if rounds:
        charts.append(_round(rounds, number))
    measured_on = result.measured_on
    grids = [_latency(runs, ratios)] if runs else []
    if rounds:
        grids.append(_model(rounds))
    return Section(
        anchor=f"speed-{number}",
        title=f"Speed, {measured_on['target'] if 'target' in measured_on else 'a server with ' + measured_on['model']}",
        says="Output tokens a second of all requests together; a ratio compares a drafter with plain decoding in the "
        "same turn (median, least and most). Absolute figures belong to one machine and one hour. "
        f"{facts(measured_on)}.",
        charts=charts,
        grids=grids,
        measured_on={result.path.name: measured_on},
    )


def _levels(lines: Lines, who: str) -> list[int]:
    return sorted({line["concurrency"] for line in lines if line["who"] == who})


def _whos(lines: Lines) -> list[str]:
    return list(dict.fromkeys(line["who"] for line in lines))


def _throughput(runs: Lines, number: int) -> Chart:
    rates = {who: {level: _rates(runs, who, level) for level in _levels(runs, who)} for who in _whos(runs)}
    says = "Output tokens a second, median with least and most of the runs"
    if len({line["concurrency"] for line in runs}) == 1:
        names = list(rates)
        one = [Bar(median(rate), min(rate), max(rate)) for each in rates.values() for rate in each.values()]
        shown = {"tokens a second": one}
        paint = partial(bars, groups=names, series=shown, label="output tokens a second", digits=1)
        return Chart(f"throughput-{number}", says, bars_height(len(names), list(shown)), paint)
    series = {
        who: [Point(level, median(rate), min(rate), max(rate)) for level, rate in each.items()]
        for who, each in rates.items()
    }
    return Chart(
        f"throughput-{number}",
        f"{says}, against concurrency",
        3.4,
        partial(_against, series=series, up="output tokens a second"),
    )


def _rates(runs: Lines, who: str, level: int) -> list[float]:
    return [line["tokens_per_second"] for line in runs if line["who"] == who and line["concurrency"] == level]


def _speedup(ratios: Lines, number: int) -> Chart:
    says = "Tokens a second over plain decoding's, median with least and most"
    if len({line["concurrency"] for line in ratios}) == 1:
        names = [line["who"] for line in ratios]
        shown = {"ratio": [Bar(line["median"], line["low"], line["high"]) for line in ratios]}
        paint = partial(bars, groups=names, series=shown, label="times plain decoding")
        return Chart(f"speedup-{number}", says, bars_height(len(names), list(shown)), paint)
    series = {
        who: [Point(r["concurrency"], r["median"], r["low"], r["high"]) for r in ratios if r["who"] == who]
        for who in _whos(ratios)
    }
    return Chart(
        f"speedup-{number}",
        f"{says}, against concurrency",
        3.4,
        partial(_against, series=series, up="times plain decoding", one=True),
    )


def _against(axes: Any, series: dict[str, list[Point]], up: str, one: bool = False) -> None:
    curves(axes, series, "requests at once", up)
    levels = sorted({point.x for points in series.values() for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [f"{level:g}" for level in levels])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    if one:
        axes.axhline(1, linewidth=1, linestyle=":", color=axes.xaxis.label.get_color())


def _round(rounds: Lines, number: int) -> Chart:
    rows = [_row(line) for line in rounds]
    found = dict.fromkeys(name for line in rounds for name in line["round"]["stages"])
    names = sorted(found, key=lambda name: STAGES.index(name.split("/")[0]))
    parts = {name: [1e3 * line["round"]["stages"].get(name, 0.0) for line in rounds] for name in names}
    return Chart(
        f"round-{number}",
        "A round's time by stage, in milliseconds",
        1.0 + 0.34 * len(rows) + legend_height(names),
        partial(stacked, rows=rows, parts=parts, label="milliseconds of a round"),
    )


def _row(line: dict[str, Any]) -> str:
    return f"{line['who']}, {line['concurrency']} at once"


def _latency(runs: Lines, ratios: Lines) -> Grid:
    rows = []
    for who in _whos(runs):
        for level in _levels(runs, who):
            found = [line for line in runs if line["who"] == who and line["concurrency"] == level]
            ratio = next((r for r in ratios if r["who"] == who and r["concurrency"] == level), None)
            speedup = "-" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
            rate = median(line["tokens_per_second"] for line in found)
            taus = [line["tau"] for line in found if line["tau"] is not None]
            times = [_time(found, "ttft", "p50"), _time(found, "ttft", "p99"), _time(found, "itl", "p50")]
            rows.append([who, str(level), f"{rate:.1f}", speedup, *times, f"{median(taus):.2f}" if taus else "-"])
    columns = ["who", "at once", "tokens/s", "over plain", "first, median ms", "first, p99 ms", "gap, median ms", "tau"]
    return Grid(columns, rows)


def _time(found: Lines, name: str, point: str) -> str:
    known = [line[name][point] for line in found if line.get(name) and line[name][point] is not None]
    return f"{1e3 * median(known):.1f}" if known else "-"


def _model(rounds: Lines) -> Grid:
    """The mean round, and the time of a token: measured, and (T_draft + T_verify) / tau."""
    rows = []
    for line in rounds:
        spent = [f"{1e3 * line['round'][part]:.2f}" for part in ("draft", "verify", "other")]
        known = [line["tpot"], line["tpot_model"]]
        token = ["-" if value is None else f"{1e3 * value:.2f}" for value in known]
        rows.append([_row(line), *spent, *token, f"{line['tau']:.2f}"])
    columns = ["a round of", "draft ms", "verify ms", "other ms", "a token, ms", "a token by the model, ms", "tau"]
    return Grid(columns, rows)
