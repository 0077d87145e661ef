"""`dspine probe`: what a frozen drafter knows at which depth, and what it needs to be told."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dspine.cli import options as o
from dspine.cli.console import note, print_json, results
from dspine.cli.figures import FiguresOption, needs_figures
from dspine.cli.models import SHIPPED_FOR, load_models
from dspine.cli.probe_tables import tables
from dspine.cli.prompts import CountOption, DataDirOption, HubOption, SplitOption, TasksOption, read_tasks

if TYPE_CHECKING:
    from dspine.drafter.proposal import Drafter
    from dspine.drafter.registry import Network
    from dspine.evaluate.results import ResultFile
    from dspine.probe.subject import Subject
    from dspine.target import Target

READER = "The reader"
RANK, STEPS = 64, 400
BLOCKS = {"reader": 16, "timing": 8, "predecessor": 8, "injection": 8}


class What(StrEnum):
    """The probes."""

    reader = "reader"
    timing = "timing"
    predecessor = "predecessor"
    injection = "injection"


def probe(
    what: Annotated[What, typer.Argument(help="Which probe.", show_default=False)],
    target: Annotated[
        str, typer.Argument(help="The model: a hub id, a folder, a GGUF file, or a built-in name.", show_default=False)
    ],
    drafter: Annotated[
        str | None, typer.Argument(help="A folder or a shipped name. Default: the one shipped for the target.")
    ] = None,
    tasks: TasksOption = "gsm8k,math500,humaneval,mbpp,livecodebench,mt_bench,arena_hard",
    data_dir: DataDirOption = None,
    hub: HubOption = False,
    split: SplitOption = "report",
    count: CountOption = None,
    max_new_tokens: o.MaxNewTokensOption = 256,
    batch: Annotated[int, typer.Option(min=1, help="Requests in progress at once, while answers are made.")] = 8,
    blocks: Annotated[
        int | None,
        typer.Option(min=1, help="Most blocks of an answer to look at. Default: 16 for reader, else 8."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the blocks that are drawn.")] = 0,
    rank: Annotated[
        int | None, typer.Option(min=1, help=f"Of a reader's map. Default: {RANK}.", rich_help_panel=READER)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help=f"Of fitting a reader. Default: {STEPS}.", rich_help_panel=READER)
    ] = None,
    dtype: o.ExactDtypeOption = None,
    device: o.DeviceOption = None,
    out: Annotated[Path, typer.Option(help="Folder of answers, results and pictures; a repeat goes on there.")] = Path(
        "runs/probe"
    ),
    figures: FiguresOption = True,
    as_json: o.JsonOption = False,
) -> None:
    """Look inside a frozen drafter of the DFlash family, on the target's own greedy answers.

    reader: at which layer the token of a place can be read, by a low-rank reader a layer.

    timing: from which layer on it pays to hear of the correct prefix.

    predecessor: how much hangs on the token before, and at which layer it has to enter.

    injection: inside DSpine, how far gates are open, how near features are to the right code, how far messages travel.

    Answers and what was measured on each are kept; the same command goes on where it was stopped.

    Examples:

        dspine probe reader nano

        dspine probe timing smollm2 runs/dflash/drafter --data-dir DATA --tasks gsm8k,humaneval

        dspine probe predecessor Qwen/Qwen3-8B DRAFTER --hub --tasks gsm8k,humaneval --split all -n 1024 --device cuda
    """
    if what is not What.reader and (rank is not None or steps is not None):
        raise typer.BadParameter(f"--rank and --steps are a reader's, and {what} has none")
    chosen = drafter or SHIPPED_FOR.get(target)
    if chosen is None:
        raise typer.BadParameter(f"no drafter is shipped for {target}: name one")
    draw = needs_figures() if figures else None
    asked = read_tasks(tasks, data_dir=data_dir, hub=hub, split=split, count=count)
    loaded, network = load_models(target, chosen, dtype=dtype, device=device, thinking=False, packed=False)

    from dspine.evaluate.results import PROBE, ResultFile, file_name

    subject, settings = _subject(
        loaded, network, chosen, asked, out, batch, max_new_tokens, blocks or BLOCKS[what], seed
    )
    fitting = {"rank": rank or RANK, "steps": steps or STEPS} if what is What.reader else {}
    measured_on = {"probe": what.value, **settings, **fitting}
    file = ResultFile.beside(out, f"probe-{what}-{file_name(loaded.name)}", PROBE, measured_on)
    _measure(what, subject, loaded, fitting, file)
    lines = [line for line in file.lines.values() if line["kind"] != "sequence"]
    if as_json:
        print_json({"measured_on": file.head["measured_on"], "file": str(file.path), "results": lines})
    else:
        for table in tables(what, lines):
            results().print(table)
    note(f"results: {file.path}")
    if draw is not None:
        for picture in draw([file.path], file.path.with_suffix("")):
            note(f"figure: {picture}")


def _subject(
    target: Target,
    network: Drafter | None,
    name: str,
    asked: Any,
    out: Path,
    batch: int,
    max_new_tokens: int,
    blocks: int,
    seed: int,
) -> tuple[Subject, dict[str, Any]]:
    """The drafter on the answers, and what a figure of it depends on."""
    from dspine.checkpoint import drafter_digest
    from dspine.decode.engine import Engine
    from dspine.decode.sampling import SamplingParams
    from dspine.drafter.registry import kind_of
    from dspine.evaluate.measure import Measurement, about_machine
    from dspine.evaluate.prompts import texts_digest
    from dspine.probe.subject import Subject, answered, features_of, probed

    looked_into = probed(cast("Network", network))
    plain, params = Engine(target, max_batch=batch), SamplingParams(max_new_tokens=max_new_tokens)
    measurement = Measurement(target, plain, "", "full", plain, out, batch=batch)
    subject = Subject(
        drafter=looked_into,
        features=features_of(target, looked_into),
        sequences=answered(measurement, asked, params),
        blocks=blocks,
        seed=seed,
    )
    settings = {
        **measurement.settings(None, params),
        "drafter": drafter_digest(name),
        "drafter_name": name,
        "kind": kind_of(looked_into),
        "tasks": {each.task.name: [each.source, len(each.prompts), texts_digest(each.prompts)] for each in asked},
        "blocks": blocks,
        "seed": seed,
        **about_machine(target),
    }
    return subject, settings


def _measure(what: What, subject: Subject, target: Target, fitting: dict[str, int], file: ResultFile) -> None:
    from dspine.probe import injection, predecessor, reader, timing

    if what is What.reader:
        reader.measure(subject, target.head_weight, reader.Fit(**fitting, seed=subject.seed), file)
    else:
        {What.timing: timing, What.predecessor: predecessor, What.injection: injection}[what].measure(subject, file)
