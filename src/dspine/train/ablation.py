"""An ablation: variants of one recipe, trained with the same seeds, budget, responses and features, and their tau.

One rule: whatever is the same is the same thing: one file of responses, one store of features, one set of held-out
prompts; a variant differs by its overrides alone. A run that is done is not done again, one that was stopped goes on.
Source: DSpine (arXiv 2609.36173), ablations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dspine.checkpoint import drafter_digest, read_config
from dspine.config import Recipe, read_recipe
from dspine.durable import write_aside
from dspine.errors import ConfigError, DataError
from dspine.progress import say
from dspine.train.materials import build
from dspine.train.objectives.choice import objective_facts
from dspine.train.processes import launched_count
from dspine.train.trainer import train
from dspine.train.variants import FULL, Variant, chosen

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


def ablate(
    recipe: str | Path, names: Sequence[str], *, overrides: Iterable[str] = (), seeds: Sequence[int] = ()
) -> Table:
    """Train and measure variants of a recipe, with every seed, each in `<output>/ablation/<variant>/seed-<seed>`.

    Args:
        recipe: a YAML file; overrides: "section.key=value" each, for all variants.
        names: of variants, see `chosen`.
        seeds: of training; none: the recipe's.

    Returns:
        the table, which also lies in `<output>/ablation.json`.

    Raises:
        DspineError: as `train` does, and for a recipe that measures nothing.
    """
    overrides = list(overrides)
    base = read_recipe(recipe, overrides)
    wanted = chosen(base, names)
    if not (base.data.held_out and base.evaluate.prompts):
        raise ConfigError(
            "the recipe holds no prompts out, so that there is nothing to measure tau on",
            "Set data.held_out and evaluate.prompts.",
        )
    if (launched_count() or 1) > 1:
        raise ConfigError("an ablation runs its trainings one after the other, in one process", "Start it by itself.")
    seeds = list(dict.fromkeys(seeds)) or [base.training.seed]
    todo = [(variant, seed) for seed in seeds for variant in wanted]  # whole seeds first: early tables compare
    asked = {
        (variant.name, seed): [*overrides, *_shared(base), *variant.overrides, *_own(base, variant, seed)]
        for variant, seed in todo
    }
    digests = {key: _digest(_checked(recipe, settings)) for key, settings in asked.items()}  # refused before work
    build(base)
    path = base.output / TABLE
    done = {key: run for key, run in _done(path).items() if key not in digests or run.digest == digests[key]}
    for number, (variant, seed) in enumerate(todo, start=1):
        key = variant.name, seed
        if key in done:
            continue
        say(
            f"[{number}/{len(todo)}] {variant.name}, seed {seed}: {' '.join(variant.overrides) or 'as the recipe says'}"
        )
        run = _train(recipe, asked[key], variant, seed, digests[key])
        if run is None:
            return _table(path, base, wanted, seeds, done, finished=False)
        _refuse_other_responses(run, done)
        done[key] = run
        _write(path, done)
    return _table(path, base, wanted, seeds, done, finished=True)


def _shared(base: Recipe) -> list[str]:
    """What every variant takes from the recipe's own folder instead of making it anew."""
    places = {
        "data.prompts": base.data.prompts,
        "data.responses": base.data.responses,
        "features.folder": base.features.folder or base.output / "features",
    }
    settings = [f"{name}={json.dumps(str(place))}" for name, place in places.items()]
    return ["build={}", f"target={json.dumps(base.target)}", *settings]


def _own(base: Recipe, variant: Variant, seed: int) -> list[str]:
    folder = base.output / "ablation" / variant.name / f"seed-{seed}"
    return [f"output={json.dumps(str(folder))}", f"training.seed={seed}"]


def _train(recipe: str | Path, settings: list[str], variant: Variant, seed: int, digest: str) -> Run | None:
    """One run; None if it was interrupted."""
    summary = train(recipe, settings)
    if summary.drafter is None or summary.acceptance is None:
        return None
    acceptance = summary.acceptance
    return Run(
        variant=variant.name,
        seed=seed,
        tau=acceptance.tau,
        tau_unrefined=acceptance.tau_unrefined,
        prompts=acceptance.prompts,
        rounds=acceptance.rounds,
        steps=summary.progress.step,
        minutes=round(summary.progress.seconds / 60, 2),
        drafter=str(summary.drafter),
        drafter_digest=drafter_digest(summary.drafter),
        digest=digest,
    )


def _checked(recipe: str | Path, settings: list[str]) -> Recipe:
    """A variant's recipe, once its objective has been found to know what it is given."""
    found = read_recipe(recipe, settings)
    objective_facts(found.drafter.kind, found.objective)
    return found


def _digest(recipe: Recipe) -> str:
    text = json.dumps(recipe.model_dump(mode="json", exclude={"ablation"}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _done(path: Path) -> dict[tuple[str, int], Run]:
    """The runs of an earlier call."""
    if not path.exists():
        return {}
    try:
        runs = [Run(**run) for run in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no table of an ablation ({error})", "Remove it; the runs stay.") from error
    return {(run.variant, run.seed): run for run in runs if Path(run.drafter).is_dir()}


def _refuse_other_responses(run: Run, done: dict[tuple[str, int], Run]) -> None:
    """The settings of runs may agree where their files do not, as after responses were made anew at the same place.

    Raises:
        DataError: an earlier run learned from other responses, so that the two say nothing of each other.
    """
    ours = _responses_of(run)
    if others := [each for each in done.values() if _responses_of(each) not in (None, ours)]:
        raise DataError(
            f"{run.drafter} was trained on other responses than {', '.join(each.drafter for each in others)}",
            "Remove the folders of the runs that are out of date; the same command makes them anew.",
        )


def _responses_of(run: Run) -> object:
    """The digest of the responses that a run learned from; None where its drafter does not say."""
    return read_config(run.drafter).training.get("responses_digest")


def _write(path: Path, done: dict[tuple[str, int], Run]) -> None:
    write_aside(path, (json.dumps({"runs": [asdict(run) for run in done.values()]}, indent=2) + "\n").encode())


def _table(
    path: Path,
    base: Recipe,
    wanted: Sequence[Variant],
    seeds: Sequence[int],
    done: dict[tuple[str, int], Run],
    *,
    finished: bool,
) -> Table:
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
    return Table(path, base.target, finished, tuple(lines))


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
