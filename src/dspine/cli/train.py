"""`dspine train`: from a recipe to a drafter."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, print_json
from dspine.cli.heavy import uncollected

ABLATION = "Ablation"


def train(
    recipe: Annotated[
        str, typer.Argument(help="The recipe: a YAML file, or the name of a shipped one.", show_default=False)
    ],
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on from the drafter's last checkpoint, or train it anew.")
    ] = True,
    overrides: o.SetOption = None,
    ablate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME...]|all",
            help="Train variants of the recipe instead and compare their tau; --ablate help lists them.",
            rich_help_panel=ABLATION,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Train every variant with each of these. Default: the recipe's seed.",
            rich_help_panel=ABLATION,
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything and say what the run would take; train and write nothing."),
    ] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Train a drafter and print the folder it lies in.

    Responses that are missing are made first, from the recipe's prompts; and before them the target and the prompts,
    where the recipe builds them. A run that is interrupted saves itself (exit code 130), and the same command goes on.

    Examples:

        dspine train nano

        dspine train recipes/smollm2-135m-cpu.yaml --set training.steps=200 --fresh

        dspine train qwen3-8b --dry-run

        dspine train nano-ablation --ablate full,no-refinement,no-injection --seeds 0,1,2
    """
    if ablate is not None:
        if dry_run:
            raise typer.BadParameter("--dry-run looks at one run: leave --ablate out, and --set the variant's values")
        _ablate(recipe, ablate, overrides or [], o.whole_numbers(seeds, "--seeds") if seeds else [], resume, as_json)
        return
    if seeds is not None:
        raise typer.BadParameter("--seeds belongs to --ablate; one run's seed is --set training.seed=N")
    if dry_run:
        if not resume:
            raise typer.BadParameter("--dry-run trains nothing, anew or not: leave --fresh out")
        _rehearse(recipe, overrides or [], as_json)
        return
    with uncollected():
        from dspine.train.processes import join
        from dspine.train.trainer import train as run

    summary = run(recipe, overrides or (), resume=resume)
    processes = join()
    processes.leave()
    if not processes.first:
        pass  # one process of several speaks
    elif as_json:
        print_json(asdict(summary) | {"drafter": str(summary.drafter) if summary.drafter else None})
    elif summary.drafter is not None:
        answer(f"{summary.drafter}\n")
    if not summary.finished:
        raise typer.Exit(130)


def _rehearse(recipe: str, overrides: list[str], as_json: bool) -> None:
    with uncollected():
        from dspine.train.rehearsal import rehearse

    found = rehearse(recipe, overrides)
    if as_json:
        print_json(asdict(found) | {"hours": found.hours})
        return
    made_up = " (made up: no responses are there yet)" if found.made_up else ""
    store = f"{found.store_bytes / 1e9:.2f} GB of features on disk" if found.store_bytes else "features made online"
    store += ", by a process of its own" if found.apart else ""
    lines = {
        "target": f"{found.target}, on {found.device}",
        "chat template": f"{found.template}, mask token {found.mask_token}",
        "drafter": f"{found.drafter}, {found.parameters / 1e6:.2f} M parameters, {found.candidates} candidates, "
        f"taps {', '.join(map(str, found.taps))}, draft vocabulary {found.draft_vocabulary}",
        "data": f"{found.sequences} sequences, {found.tokens} tokens{made_up}; {store}",
        "memory": f"{found.state_bytes / 1e9:.2f} GB of weights, gradients and moments; at most "
        f"{found.peak_bytes / 1e9:.2f} GB held while stepping",
        "steps": f"{found.steps} of {found.step_seconds:.2f} s, and {found.target_seconds:.2f} s of the target each"
        f"{', meanwhile' if found.apart else ''}",
        "time": f"{found.hours:.2f} hours in one training process, measuring and saving left out",
    }
    answer("".join(f"{name:<14}{said}\n" for name, said in lines.items()))


def _ablate(recipe: str, names: str, overrides: list[str], seeds: list[int], resume: bool, as_json: bool) -> None:
    if not resume:
        raise typer.BadParameter("--fresh begins one drafter anew; for an ablation, remove its folder")
    with uncollected():
        from dspine.config import read_recipe
        from dspine.train.ablation import ablate
        from dspine.train.variants import variants

    if names == "help":
        for variant in variants(read_recipe(recipe, overrides)).values():
            answer(f"{variant.name:<22}{variant.says}  {' '.join(variant.overrides)}\n")
        return
    table = ablate(recipe, [name.strip() for name in names.split(",")], overrides=overrides, seeds=seeds)
    if as_json:
        print_json(table.as_json())
    else:
        answer(table.as_markdown())
    if not table.finished:
        raise typer.Exit(130)
