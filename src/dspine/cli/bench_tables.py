"""The tables of `dspine bench`, from the lines of its file of results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from dspine.cli.console import results, titled

Line = Mapping[str, Any]


def show(measured_on: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Print what was measured on what, and a table of each kind of results that there is."""
    console = results()
    hidden = ("head_digest", "template_digest", "versions", "digests")
    facts = {key: value for key, value in measured_on.items() if value is not None and key not in hidden}
    console.print(", ".join(f"{key} {_short(value)}" for key, value in facts.items()) + "\n", soft_wrap=True)
    rounds = [line for line in lines if line["kind"] == "stages" and line["round"] is not None]
    predictions = [line for line in lines if line["kind"] == "prediction"]
    console.print(_throughput(lines))
    if rounds:
        console.print(_rounds(rounds))
        console.print(_stages(rounds))
    if predictions:
        console.print(_predictions(predictions))


def _throughput(lines: Sequence[Line]) -> Table:
    table = _table("Output tokens a second, the median of the runs; times are those of the same runs")
    for column in ("tokens/s", "ratio", "spread", "first ms", "gap ms", "token ms", "tau"):
        table.add_column(column, justify="right", no_wrap=True)
    ratios = {(line["concurrency"], line["who"]): line for line in lines if line["kind"] == "ratio"}
    runs: dict[tuple[int, str], list[Line]] = {}
    for line in lines:
        if line["kind"] == "run":
            runs.setdefault((line["concurrency"], line["who"]), []).append(line)
    for (concurrency, who), found in sorted(runs.items(), key=lambda item: item[0][0]):
        ratio = ratios.get((concurrency, who))
        table.add_row(
            str(concurrency),
            who,
            f"{statistics.median(run['tokens_per_second'] for run in found):.1f}",
            f"{ratio['median']:.2f}" if ratio else "-",
            f"{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio else "-",
            _ms(run["ttft"]["p50"] for run in found),
            _ms(run["itl"]["p50"] for run in found),
            _ms(run["tpot"] for run in found),
            _median((run["tau"] for run in found), "{:.2f}"),
        )
    return table


def _rounds(lines: Iterable[Line]) -> Table:
    table = _table("A round, in ms, and a token: by (T_draft + T_verify) / tau, and as measured with the clock on")
    for column in ("T_draft", "T_verify", "other", "tau", "model", "measured"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        parts = [f"{1000 * line['round'][part]:.2f}" for part in ("draft", "verify", "other")]
        tokens = [_ms([line["tpot_model"]]), _ms([line["tpot"]])]
        table.add_row(str(line["concurrency"]), line["who"], *parts, f"{line['tau']:.2f}", *tokens)
    return table


def _stages(lines: Sequence[Line]) -> Table:
    table = titled("A round by stage, in ms (share)")
    table.add_column("stage", no_wrap=True)
    for line in lines:
        table.add_column(f"{line['who']} {line['concurrency']}", justify="right")
    names = list(dict.fromkeys(name for line in lines for name in line["round"]["stages"]))
    for name in names:
        table.add_row(name, *(_stage(line["round"]["stages"], name) for line in lines))
    return table


def _stage(stages: Mapping[str, float], name: str) -> str:
    if name not in stages:
        return "-"
    return f"{1000 * stages[name]:.2f} ({100 * stages[name] / sum(stages.values()):.0f} %)"


def _predictions(lines: Iterable[Line]) -> Table:
    table = _table("Speed-up over plain decoding that tau and the cost table promise, prefill aside")
    for column in ("tau", "speed-up"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(str(line["concurrency"]), line["who"], f"{line['tau']:.2f}", f"{line['speedup']:.2f}")
    return table


def _table(title: str) -> Table:
    table = titled(title)
    table.add_column("at once", justify="right")
    table.add_column("who", overflow="fold")
    return table


def _ms(seconds: Iterable[float | None]) -> str:
    return _median((None if each is None else 1000 * each for each in seconds), "{:.1f}")


def _median(values: Iterable[float | None], form: str) -> str:
    """The median of the values that there are, "-" without any."""
    known = [value for value in values if value is not None]
    return form.format(statistics.median(known)) if known else "-"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_short(each)}" for key, each in value.items()) + "}"
    return str(value)[:40]
