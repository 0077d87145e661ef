"""The table of an ablation: its runs on disk, and a line a variant over its seeds.

One rule: a variant is compared with `full` under the same seed, or not at all.
Source: DSpine (arXiv 2609.36173), ablations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dspine.durable import write_aside
from dspine.errors import DataError
from dspine.train.variants import FULL, Variant

TABLE = "ablation.json"


@dataclass(frozen=True)
class Run:
    """One variant trained with one seed, and its acceptance on the recipe's held-out prompts, greedy.

    tau_unrefined: of the ordinary output; None where nothing is refined. digest: of all that the run was made from.
    """

    variant: str
    seed: int
    tau: float
    tau_unrefined: float | None
    prompts: int
    rounds: int
    steps: int
    minutes: float
    drafter: str
    drafter_digest: str
    digest: str


@dataclass(frozen=True)
class Line:
    """A variant over its seeds. Spreads are standard deviations over seeds (n - 1), None for a single one.

    difference: mean over seeds of tau less that of `full` with the same seed.
    """

    variant: Variant
    runs: tuple[Run, ...]
    tau: float
    spread: float | None
    difference: float
    difference_spread: float | None


@dataclass(frozen=True)
class Table:
    """An ablation's lines; not finished: it was interrupted, and lines and seeds are missing."""

    path: Path
    target: str
    finished: bool
    lines: tuple[Line, ...]

    def as_json(self) -> dict[str, Any]:
        return {"target": self.target, "finished": self.finished, "lines": [asdict(line) for line in self.lines]}

    def as_markdown(self) -> str:
        """The table, and under it what it was measured on."""
        head = "| variant | tau | spread | against full | spread | without refinement |\n|---|---|---|---|---|---|\n"
        body = "".join(_row(line) for line in self.lines)
        runs = [run for line in self.lines for run in line.runs]
        if not runs:
            return head
        seeds = ", ".join(map(str, dict.fromkeys(run.seed for run in runs)))
        foot = (
            f"\ntau = kept / rounds, greedy, on {runs[0].prompts} held-out prompts; target {self.target}, "
            f"{runs[0].steps} steps; seeds {seeds}; spread: standard deviation over seeds\n"
        )
        return head + body + foot


def read_runs(path: Path) -> dict[tuple[str, int], Run]:
    """The runs of an earlier call whose drafters are still there, by variant and seed.

    Raises:
        DataError: the file is something else.
    """
    if not path.exists():
        return {}
    try:
        runs = [Run(**run) for run in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no table of an ablation ({error})", "Remove it; the runs stay.") from error
    return {(run.variant, run.seed): run for run in runs if Path(run.drafter).is_dir()}


def write_runs(path: Path, done: Mapping[tuple[str, int], Run]) -> None:
    """Write the runs that are done.

    Raises:
        DataError: the file cannot be written.
    """
    write_aside(path, (json.dumps({"runs": [asdict(run) for run in done.values()]}, indent=2) + "\n").encode())


def table_of(
    path: Path,
    target: str,
    wanted: Sequence[Variant],
    seeds: Sequence[int],
    done: Mapping[tuple[str, int], Run],
    *,
    finished: bool,
) -> Table:
    """The table of some variants and seeds, as far as their runs are done."""
    lines = []
    for variant in wanted:
        # `full` is trained first of every seed; where it is trained anew, nothing compares until it is done.
        compared = [seed for seed in seeds if (FULL, seed) in done and (variant.name, seed) in done]
        runs = tuple(done[variant.name, seed] for seed in compared)
        if not runs:
            continue
        taus = [run.tau for run in runs]
        less = [run.tau - done[FULL, run.seed].tau for run in runs]
        lines.append(Line(variant, runs, mean(taus), _spread(taus), mean(less), _spread(less)))
    return Table(path, target, finished, tuple(lines))


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _row(line: Line) -> str:
    unrefined = [run.tau_unrefined for run in line.runs if run.tau_unrefined is not None]
    cells = [line.variant.name, f"{line.tau:.3f}", _number(line.spread)]
    cells += ["", ""] if line.variant.name == FULL else [f"{line.difference:+.3f}", _number(line.difference_spread)]
    cells.append(f"{mean(unrefined):.3f}" if unrefined else "")
    return f"| {' | '.join(cells)} |\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
