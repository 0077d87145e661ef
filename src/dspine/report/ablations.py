"""Variants of one recipe beside each other, from the tables of `dspine train --ablate`, and methods, from `dspine lab`.

One rule: a spread over seeds is a standard deviation; with one seed there is none, and none is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import mean, stdev
from typing import Any

from dspine.report.acceptance import by_place, curve
from dspine.report.charts import Bar, Chart, bars, bars_height, stacked
from dspine.report.found import Result
from dspine.report.section import Grid, Section, facts

FULL = "full"


def ablations(results: Sequence[Result]) -> Iterator[Section]:
    """A section for each table of variants."""
    for number, result in enumerate(results):
        of: dict[str, list[dict[str, Any]]] = {}
        for run in result.lines:
            of.setdefault(run["variant"], []).append(run)
        taus = {name: _spread([run["tau"] for run in runs]) for name, runs in of.items()}
        first = result.lines[0]
        chart = Chart(
            f"ablation-{number}",
            "Acceptance length of the variants, with standard deviations over seeds",
            bars_height(len(taus), ["tau"]),
            partial(bars, groups=list(taus), series={"tau": list(taus.values())}, label="tau: tokens kept a round"),
        )
        yield Section(
            anchor=f"ablation-{number}",
            title="Ablation",
            says=f"tau = kept tokens / rounds, greedy, on {first['prompts']} held-out prompts; all have the same "
            f"answers and features, {first['steps']} steps, and the seeds {', '.join(_seeds(result))}. "
            f"From {result.path}.",
            charts=[chart],
            grids=[_variants(of)],
        )


def labs(results: Sequence[Result]) -> Iterator[Section]:
    """A section for each comparison of methods."""
    for number, result in enumerate(results):
        lines = result.lines
        titles = [line["title"] for line in lines]
        taus = {f"T = {float(t):g}": [_all(line, t) for line in lines] for t in lines[0]["tau"]}
        parts = {name: [line[name] for line in lines] for name in ("verify", "draft", "other")}
        yield Section(
            anchor=f"lab-{number}",
            title="Methods at one budget",
            says=f"The same answers of the target, steps and backbone for all. {_uncertainty(lines)}; speed-up: "
            f"tokens/s over plain decoding's, one request. {facts(result.measured_on, 'prompts')}.",
            charts=[
                Chart(
                    f"lab-tau-{number}",
                    "Acceptance length by method, over all families of prompts",
                    bars_height(len(lines), list(taus)),
                    partial(bars, groups=titles, series=taus, label="tau: tokens kept a round"),
                ),
                Chart(
                    f"lab-places-{number}",
                    "Share of candidates that stand, by place in the block, greedy",
                    3.4,
                    partial(by_place, series={line["title"]: curve(line["places"]) for line in lines}),
                ),
                Chart(
                    f"lab-round-{number}",
                    "A round's time by method, in milliseconds, one request",
                    1.3 + 0.34 * len(lines),
                    partial(stacked, rows=titles, parts=parts, label="milliseconds of a round"),
                ),
            ],
            grids=[_methods(lines)],
            measured_on={result.path.name: result.measured_on},
        )


def _uncertainty(lines: Sequence[dict[str, Any]]) -> str:
    one = len(lines[0]["seeds"]) == 1
    return "Intervals are 95 % bootstrap ones over prompts" if one else "Spreads are standard deviations over seeds"


def _spread(values: Sequence[float]) -> Bar:
    if len(values) == 1:
        return Bar(values[0])
    return Bar(mean(values), mean(values) - stdev(values), mean(values) + stdev(values))


def _seeds(result: Result) -> list[str]:
    return [str(seed) for seed in dict.fromkeys(run["seed"] for run in result.lines)]


def _variants(of: dict[str, list[dict[str, Any]]]) -> Grid:
    base = {run["seed"]: run["tau"] for run in of.get(FULL, [])}
    rows = []
    for name, runs in of.items():
        bar = _spread([run["tau"] for run in runs])
        less = [run["tau"] - base[run["seed"]] for run in runs if run["seed"] in base]
        spread = "-" if bar.high is None or bar.value is None else f"{bar.high - bar.value:.3f}"
        against = "" if name == FULL or not less else f"{mean(less):+.3f}"
        unrefined = [run["tau_unrefined"] for run in runs if run["tau_unrefined"] is not None]
        plain = f"{mean(unrefined):.3f}" if unrefined else "-"
        minutes = f"{mean(run['minutes'] for run in runs):.1f}"
        rows.append([name, f"{bar.value:.3f}", spread, against, plain, str(len(runs)), minutes])
    return Grid(["variant", "tau", "spread", "against full", "without refinement", "seeds", "minutes"], rows)


def _all(line: dict[str, Any], temperature: str) -> Bar:
    tau = line["tau"][temperature]["all"]
    return Bar(tau["mean"], tau["low"], tau["high"])


def _methods(lines: Sequence[dict[str, Any]]) -> Grid:
    temperatures = list(lines[0]["tau"])
    families = [name for name in lines[0]["tau"][temperatures[0]] if name != "all"]
    rows = []
    for line in lines:
        taus = [_said(line["tau"][t]["all"]) for t in temperatures]
        by_family = [f"{line['tau'][temperatures[0]][family]['mean']:.2f}" for family in families]
        against = "-" if line["against"] is None else f"{line['against']:.2f}"
        rows.append(
            [
                line["title"],
                *taus,
                against,
                *by_family,
                f"{line['speedup']:.2f}",
                f"{line['parameters'] / 1e6:.2f} M",
                f"{line['minutes']:.1f}",
                f"{line['identical']} of {line['compared']}",
            ]
        )
    heads = [f"tau, T = {float(t):g}" for t in temperatures]
    columns = ["method", *heads, "over DFlash", *families, "speed-up", "parameters", "minutes", "same output"]
    return Grid(columns, rows)


def _said(tau: dict[str, float]) -> str:
    return f"{tau['mean']:.2f} ({tau['low']:.2f}-{tau['high']:.2f})"
