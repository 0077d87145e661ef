"""An ablation: variants of one recipe, trained with the same seeds, budget, responses and features, and their tau.

One rule: whatever is the same is the same thing: one file of responses, one store of features, one set of held-out
prompts; a variant differs by its overrides alone, and where these change what is stored, it has a store of its own. A
run that is done is not done again, one that was stopped goes on.
Source: DSpine (arXiv 2609.36173), ablations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from dspine.checkpoint import drafter_digest, read_config
from dspine.config import Recipe, read_recipe
from dspine.errors import ConfigError, DataError, DspineError
from dspine.progress import say
from dspine.train.ablation_table import TABLE, Run, Table, read_runs, table_of, write_runs
from dspine.train.materials import build
from dspine.train.objectives.choice import objective_facts
from dspine.train.processes import launched_count
from dspine.train.trainer import train
from dspine.train.variants import FULL, Variant, chosen

STORED = {"drafter.target_layer_ids", "features.dtype", "training.max_length"}  # settings of a store of features


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
        DspineError: as `train` does, and for a recipe that measures nothing. Where a variant fails, the others are
            trained all the same, and the failures are raised at the end; the same command tries those again.
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
        (variant.name, seed): [*overrides, *_shared(base, variant), *variant.overrides, *_own(base, variant, seed)]
        for variant, seed in todo
    }
    digests = {key: _digest(_checked(recipe, settings)) for key, settings in asked.items()}  # refused before work
    build(base)
    path = base.output / TABLE
    done = {key: run for key, run in read_runs(path).items() if key not in digests or run.digest == digests[key]}
    table = partial(table_of, path, base.target, wanted, seeds, done)
    failed: dict[str, DspineError] = {}
    for number, (variant, seed) in enumerate(todo, start=1):
        key = variant.name, seed
        if key in done:
            continue
        say(
            f"[{number}/{len(todo)}] {variant.name}, seed {seed}: {' '.join(variant.overrides) or 'as the recipe says'}"
        )
        try:
            run = _train(recipe, asked[key], variant, seed, digests[key])
        except DspineError as error:
            if variant.name == FULL:  # without it nothing compares
                raise
            failed[f"{variant.name}, seed {seed}"] = error
            say(f"failed: {variant.name}, seed {seed}: {error}")
            continue
        if run is None:
            return table(finished=False)
        _refuse_other_responses(run, done)
        done[key] = run
        write_runs(path, done)
    if failed:
        say(table(finished=False).as_markdown())
        raise _failure(failed, len(todo))
    return table(finished=True)


def _failure(failed: Mapping[str, DspineError], count: int) -> DataError:
    """What is raised at the end, of all failures by their run; `count` runs there were."""
    named = "; ".join(f"{name} ({error.what})" for name, error in failed.items())
    fixes = dict.fromkeys(error.fix for error in failed.values() if error.fix)
    return DataError(f"{len(failed)} of {count} runs failed: {named}", "\n".join(fixes) or None)


def _shared(base: Recipe, variant: Variant) -> list[str]:
    """What every variant takes from the recipe's own folder instead of making it anew.

    A variant of what is stored has a store of its own, for all its seeds.
    """
    changed = {setting.partition("=")[0].strip() for setting in variant.overrides}
    features = base.features.folder or base.output / "features"
    if changed & STORED:
        features = base.output / "ablation" / variant.name / "features"
    places = {"data.prompts": base.data.prompts, "data.responses": base.data.responses, "features.folder": features}
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
