"""The table of a comparison: one line a method, over its seeds.

One rule: with one seed the interval is the bootstrap over prompts, with several the spread is the standard deviation
over seeds; which of the two a number carries is said in the table's foot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dspine.evaluate.acceptance import Place
from dspine.evaluate.contest import stage_key
from dspine.evaluate.results import LAB, ResultFile
from dspine.lab.comparison import ALL, TEMPERATURES, Comparison, Outcome

BASELINE = "DFlash"


@dataclass(frozen=True)
class Tau:
    """Mean over seeds, and its uncertainty: low and high of the one seed's bootstrap, or mean ∓ standard deviation."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], family: str) -> Tau:
        figures = [outcome.families[family].whole for outcome in outcomes]
        if len(figures) == 1:
            return cls(figures[0].tau, figures[0].interval.low, figures[0].interval.high)
        middle, spread = mean(f.tau for f in figures), stdev(f.tau for f in figures)
        return cls(middle, middle - spread, middle + spread)


@dataclass(frozen=True)
class Line:
    """A method.

    tau: by temperature and family.
    against: tau over all, T = 0, over that of DFlash; None without it.
    places: greedy acceptance by place, of the first seed, over all families.
    speedup: tokens/s over plain ones' (median over laps); draft, verify, other: milliseconds a round.
    identical, compared: greedy answers that equal plain ones, over seeds.
    """

    title: str
    parameters: int
    minutes: float
    steps: int
    seeds: tuple[int, ...]
    tau: dict[float, dict[str, Tau]]
    against: float | None
    places: tuple[Place, ...]
    speedup: float
    draft: float
    verify: float
    other: float
    identical: int
    compared: int


def lines_of(comparison: Comparison) -> list[Line]:
    """The methods, the one with the most kept greedily first."""
    by_title: dict[str, list[Outcome]] = {}
    for outcome in comparison.outcomes:
        by_title.setdefault(outcome.contestant.title, []).append(outcome)
    greedy = {title: Tau.of(_at(outcomes, 0.0), ALL).mean for title, outcomes in by_title.items()}
    lines = [_line(comparison, title, outcomes, greedy.get(BASELINE)) for title, outcomes in by_title.items()]
    return sorted(lines, key=lambda line: -line.tau[0.0][ALL].mean)


def as_json(comparison: Comparison, lines: Sequence[Line]) -> dict[str, Any]:
    return {"measured_on": comparison.measured_on, "lines": [asdict(line) for line in lines]}


def save(comparison: Comparison, lines: Sequence[Line]) -> Path:
    """Write the table beside what it was made of, for a report: `lab.jsonl`, a line a method under its title.

    Raises:
        DataError: it cannot be written.
    """
    path = comparison.folder / "lab.jsonl"
    path.unlink(missing_ok=True)  # methods that were left out this time are no part of this table
    ResultFile(path, LAB, comparison.measured_on).add({"key": line.title, **asdict(line)} for line in lines)
    return path


def as_markdown(lines: Sequence[Line]) -> str:
    """The table, and under it what the intervals are."""
    families = [name for name in lines[0].tau[0.0] if name != ALL]
    heads = ["drafter", "tau, T = 0", "over DFlash", "tau, T = 1", *families, "speed-up", "draft ms", "verify ms"]
    heads += ["parameters", "minutes"]
    rows = [heads, ["---"] * len(heads), *(_cells(line, families) for line in lines)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    first = lines[0]
    spread = "95 % bootstrap over prompts" if len(first.seeds) == 1 else "mean ∓ standard deviation over seeds"
    same, compared = sum(line.identical for line in lines), sum(line.compared for line in lines)
    return table + (
        f"\ntau = kept / rounds over all families ({spread}), and greedy by family; {first.steps} steps each, seeds "
        f"{', '.join(map(str, first.seeds))}; one request at a time: median tokens/s over plain decoding's in the same "
        f"process, milliseconds a round; minutes of training; {same} of {compared} greedy answers equal plain ones\n"
    )


def _line(comparison: Comparison, title: str, outcomes: Sequence[Outcome], baseline: float | None) -> Line:
    greedy, first = _at(outcomes, 0.0), outcomes[0].contestant
    tau = {t: {family: Tau.of(_at(outcomes, t), family) for family in greedy[0].families} for t in TEMPERATURES}
    spent = comparison.timings[stage_key(1, title)]["round"]
    return Line(
        title=title,
        parameters=first.parameters,
        minutes=mean(outcome.contestant.minutes for outcome in greedy),
        steps=first.steps,
        seeds=tuple(outcome.contestant.seed for outcome in greedy),
        tau=tau,
        against=None if baseline is None else tau[0.0][ALL].mean / baseline,
        places=greedy[0].families[ALL].whole.places,
        speedup=comparison.timings[f"ratio/1/{title}"]["median"],
        draft=1e3 * spent["draft"],
        verify=1e3 * spent["verify"],
        other=1e3 * spent["other"],
        identical=sum(outcome.identical for outcome in greedy),
        compared=sum(outcome.compared for outcome in greedy),
    )


def _at(outcomes: Sequence[Outcome], temperature: float) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.temperature == temperature]


def _cells(line: Line, families: Sequence[str]) -> list[str]:
    greedy = line.tau[0.0]
    return [
        line.title,
        _said(greedy[ALL]),
        "-" if line.against is None else f"{line.against:.2f}",
        _said(line.tau[1.0][ALL]),
        *(f"{greedy[family].mean:.2f}" for family in families),
        f"{line.speedup:.2f}",
        f"{line.draft:.1f}",
        f"{line.verify:.1f}",
        f"{line.parameters / 1e6:.2f} M",
        f"{line.minutes:.1f}",
    ]


def _said(tau: Tau) -> str:
    return f"**{tau.mean:.2f}** ({tau.low:.2f}-{tau.high:.2f})"
