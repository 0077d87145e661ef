"""The comparison from a recipe to its figures: train, answer, time, and put side by side.

One rule: nothing is done twice. Training, answers and timings each lie on disk when they are done; the same call goes
on after an interrupt, or with more seeds.
Source: DSpine (arXiv 2609.36173), main results; the families of prompts are those that the recipe holds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dspine.config import Recipe, read_recipe
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError
from dspine.evaluate.answers import read_answers
from dspine.evaluate.contest import Contest
from dspine.evaluate.means import forced_means
from dspine.evaluate.measure import Measurement, about_machine
from dspine.evaluate.prompts import TaskPrompt, texts_digest
from dspine.evaluate.results import ACCEPTANCE, ResultFile
from dspine.evaluate.sources import Asked, mixed
from dspine.evaluate.summary import Summary, summarise
from dspine.evaluate.tasks.task import Task, as_it_is
from dspine.evaluate.throughput import measure_contest, result_file
from dspine.kernels.choice import Choice
from dspine.kernels.recording import Capture
from dspine.lab.contestants import Contestant, contestants, names_of, network_of
from dspine.progress import say
from dspine.target import Target, load_target
from dspine.target.chat import render
from dspine.train.ablation import ablate
from dspine.train.materials import build, selection

TEMPERATURES = (0.0, 1.0)
ALL = "all"
TIMED = 16  # prompts that decoding is timed on


@dataclass(frozen=True)
class Outcome:
    """What one drafter was measured to do at one temperature.

    families: figures by family, and of all answers together under `ALL`.
    identical, compared: answers that are those of plain decoding, of those compared (greedy ones).
    """

    contestant: Contestant
    temperature: float
    families: Mapping[str, Summary]
    identical: int
    compared: int


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    timings: the lines of the timing (`evaluate.contest`), by key; those of the first seed.
    measured_on: what the figures depend on.
    """

    folder: Path
    outcomes: list[Outcome]
    timings: Mapping[str, Mapping[str, Any]]
    measured_on: dict[str, Any]


def compare(
    recipe: str | Path,
    *,
    drafters: Sequence[str] | None = None,
    seeds: Sequence[int] = (),
    steps: int | None = None,
    overrides: Iterable[str] = (),
    kernels: Choice = "auto",
    capture: Capture = "auto",
) -> Comparison | None:
    """Train the drafters of a recipe and measure them on the prompts that it holds out.

    Args:
        recipe: a DSpine recipe, whose `ablation` names the others.
        drafters: which of them; None: all.
        seeds: of training; none: the recipe's.
        steps: of every training; None: the recipe's.
        overrides: "section.key=value" each, for all drafters.
        kernels, capture: as of `Engine`.

    Returns:
        None if training was interrupted.

    Raises:
        DspineError: as training and measuring do.
    """
    budget = [] if steps is None else [f"training.steps={steps}", "training.epochs=null"]
    settings = [*overrides, *budget]
    base = read_recipe(recipe, settings)
    if kernels == "fused" or capture == "on":  # refused before anything is trained
        build(base)
        Engine(_target(base), kernels=kernels, capture=capture)
    table = ablate(recipe, names_of(list(base.ablation), drafters), overrides=settings, seeds=seeds)
    if not table.finished:
        return None
    target = _target(base)
    asked, folder = families(base, target), base.output / "lab"
    entries = contestants(table, target)
    outcomes = []
    for number, entry in enumerate(entries, start=1):
        say(f"[{number}/{len(entries)}] {entry.title}, seed {entry.seed}: answers")
        outcomes += acceptance(target, entry, asked, folder, base.evaluate.max_new_tokens, kernels, capture)
    first = [entry for entry in entries if entry.seed == entries[0].seed]
    say("decoding speed")
    return Comparison(
        folder=folder,
        outcomes=outcomes,
        timings=speed(target, first, asked, folder, base.evaluate.max_new_tokens, kernels, capture),
        measured_on=_measured_on(base, target, asked),
    )


def _target(recipe: Recipe) -> Target:
    return load_target(recipe.target, dtype=getattr(torch, recipe.dtype) if recipe.dtype else None)


def families(recipe: Recipe, target: Target) -> list[Asked]:
    """The prompts that a recipe holds out, by source, as tasks.

    Raises:
        ConfigError: none are held out, or they are more than a user's first message.
    """
    found: dict[str, list[TaskPrompt]] = {}
    for prompt in selection(recipe).held_out:
        [*before, last] = prompt.messages
        if before:
            raise ConfigError(f"{prompt.id} has messages before the last", "The lab asks single messages.")
        text = str(last["content"])
        if len(render(target, [{"role": "user", "content": text}])) <= recipe.data.max_prompt_tokens:
            found.setdefault(prompt.source, []).append(TaskPrompt(prompt.id, text))
    if not found:
        raise ConfigError("the recipe holds no prompts out", "Set data.held_out.")
    return [Asked(Task(name=name, file="", wording=as_it_is), "held out", rows) for name, rows in found.items()]


def acceptance(
    target: Target,
    entry: Contestant,
    asked: Sequence[Asked],
    folder: Path,
    max_new_tokens: int,
    kernels: Choice,
    capture: Capture,
) -> list[Outcome]:
    """What a drafter keeps a round on each family, at each temperature; its greedy answers beside plain ones."""
    engine = partial(Engine, target, kernels=kernels, capture=capture)
    measurement = Measurement(
        target=target,
        drafted=engine(network_of(entry.folder, target)),
        drafter=entry.digest,
        verify="full",
        plain=engine(),
        out=folder,
        means=forced_means(kernels, capture),
    )
    outcomes = []
    for temperature in TEMPERATURES:
        seed = 0 if temperature else None
        params = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=max_new_tokens)
        found = measurement.results(asked, params)
        name = measurement.name(entry.digest, params)
        _, answers = read_answers(folder / f"{name}.jsonl")
        whole = summarise([answers[prompt.id] for each in asked for prompt in each.prompts])
        measured_on = {
            **measurement.settings(entry.digest, params),
            "split": "held out",
            "turns": 1,
            "drafter_name": f"{entry.title}, seed {entry.seed}",
            **about_machine(target),
        }
        path = folder / f"acceptance-{name}.jsonl"
        path.unlink(missing_ok=True)  # every task is in what follows, from the answers that are kept
        ResultFile(path, ACCEPTANCE, measured_on).add({"key": result.task, **asdict(result)} for result in found)
        compared = [result.lossless for result in found if result.lossless is not None]
        outcomes.append(
            Outcome(
                contestant=entry,
                temperature=temperature,
                families={result.task: result.summary for result in found} | {ALL: whole},
                identical=sum(each.identical for each in compared),
                compared=sum(each.compared for each in compared),
            )
        )
    return outcomes


def speed(
    target: Target,
    entries: Sequence[Contestant],
    asked: Sequence[Asked],
    folder: Path,
    max_new_tokens: int,
    kernels: Choice,
    capture: Capture,
) -> Mapping[str, Mapping[str, Any]]:
    """Tokens a second and the stages of a round, one request at a time, everybody and plain decoding in turn."""
    prompts = [render(target, [{"role": "user", "content": prompt.text}]) for prompt in mixed(asked)[:TIMED]]
    networks = {entry.title: network_of(entry.folder, target) for entry in entries}
    contest = Contest(
        target,
        networks,
        prompts,
        SamplingParams(max_new_tokens=max_new_tokens),
        waves=len(prompts),
        kernels=kernels,
        capture=capture,
    )
    measured_on = {
        "target": target.name,
        "head_digest": target.head_digest,
        "drafters": {entry.title: entry.digest for entry in entries},
        "prompts": len(prompts),
        "max_new_tokens": max_new_tokens,
        **contest.means,
        **about_machine(target),
    }
    file = result_file(folder, "lab", measured_on)
    measure_contest(contest, [1], [], file)
    return file.lines


def _measured_on(recipe: Recipe, target: Target, asked: Sequence[Asked]) -> dict[str, Any]:
    return {
        "target": target.name,
        "head_digest": target.head_digest,
        "dtype": str(target.dtype).removeprefix("torch."),
        "max_new_tokens": recipe.evaluate.max_new_tokens,
        "prompts": {each.task.name: len(each.prompts) for each in asked},
        "digests": {each.task.name: texts_digest(each.prompts) for each in asked},
        **about_machine(target),
    }
