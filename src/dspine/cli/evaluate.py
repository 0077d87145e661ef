"""`dspine eval`: the acceptance length of a drafter, task by task, and whether the output stayed what it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dspine.cli import options as o
from dspine.cli.console import complain, note, print_json, results, titled
from dspine.cli.models import SHIPPED_FOR, load_models
from dspine.cli.prompts import (
    CountOption,
    DataDirOption,
    HubOption,
    SplitOption,
    TasksOption,
    read_tasks,
)

if TYPE_CHECKING:
    from dspine.evaluate.acceptance import Place
    from dspine.evaluate.accuracy import Accuracy
    from dspine.evaluate.measure import Result
    from dspine.evaluate.summary import Figures

NEAR_TIE = 1e-3  # logits; what float32 may round differently, as in `dspine demo`


def evaluate(
    target: Annotated[str, typer.Argument(help="The model: a hub id, a folder, a GGUF file, or a built-in name.")],
    drafter: Annotated[
        str | None, typer.Argument(help="A folder or a shipped name. Default: the one shipped for the target.")
    ] = None,
    tasks: TasksOption = "gsm8k,math500,humaneval,mbpp,livecodebench,mt_bench,arena_hard",
    data_dir: DataDirOption = None,
    hub: HubOption = False,
    split: SplitOption = "report",
    count: CountOption = None,
    turns: Annotated[int, typer.Option(min=1, help="Most user messages of a prompt to ask (MT-Bench has 2).")] = 1,
    temperature: Annotated[str, typer.Option(help="One or several, with commas; 0 is greedy.")] = "0,1",
    seed: Annotated[int, typer.Option(help="Of sampled answers; each request has its own, made of it.")] = 0,
    max_new_tokens: o.MaxNewTokensOption = 256,
    batch: Annotated[int, typer.Option(min=1, help="Requests in progress at once.")] = 8,
    dtype: o.ExactDtypeOption = None,
    device: o.DeviceOption = None,
    verify: o.FullVerifyOption = "full",
    rollback: o.RollbackOption = o.RollbackChoice.auto,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    no_plain: Annotated[
        bool, typer.Option("--no-plain", help="Skip the plain answers and the comparison with them.")
    ] = False,
    execute_code: Annotated[
        bool,
        typer.Option(
            "--execute-code",
            help="Score code by running it: in a process with limits on time, memory, files and processes. "
            "That is no jail: run the command in a container if you do not trust the model.",
        ),
    ] = False,
    show: Annotated[
        int, typer.Option(min=0, help="Answers a task to keep token by token, for `dspine report` to show.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the answers and results; a repeat goes on there.")] = Path(
        "runs/eval"
    ),
    as_json: o.JsonOption = False,
) -> None:
    """Measure how many tokens a round keeps (tau), task by task, in everybody's definitions and with intervals.

    Without --data-dir and --hub it asks ten prompts a task of our own, for a first look. Every answer is kept with its
    rounds, and the same command goes on where it was stopped. Greedy answers are compared with the plain ones.

    Examples:

        dspine eval nano

        dspine eval smollm2 smollm2-135m-dspine --data-dir DATA --tasks gsm8k,mt_bench --temperature 0

        dspine eval smollm2 --tasks ours.jsonl --count 20 --json
    """
    chosen = drafter or SHIPPED_FOR.get(target)
    if chosen is None:
        raise typer.BadParameter(f"no drafter is shipped for {target}: name one")
    verified = o.verify_choice(verify)
    params = [
        o.sampling_params(temperature=t, seed=seed if t > 0 else None, max_new_tokens=max_new_tokens)
        for t in o.numbers(temperature, "--temperature")
    ]
    asked = read_tasks(tasks, data_dir=data_dir, hub=hub, split=split, count=count)
    loaded, network = load_models(target, chosen, dtype=dtype, device=device, thinking=False, rollback=rollback)

    from dspine.checkpoint import drafter_digest
    from dspine.decode.engine import Engine
    from dspine.evaluate.answers import read_answers
    from dspine.evaluate.decoded import keep
    from dspine.evaluate.means import forced_means
    from dspine.evaluate.measure import Measurement, about_machine
    from dspine.evaluate.results import DECODED, ResultFile

    engine = partial(Engine, loaded, max_batch=batch, kernels=kernels.value, capture=capture.value)
    measurement = Measurement(
        target=loaded,
        drafted=engine(network, verify=verified),
        drafter=drafter_digest(chosen),
        verify=verified,
        plain=None if no_plain else engine(),
        out=out,
        turns=turns,
        batch=batch,
        execute_code=execute_code,
        means=forced_means(kernels.value, capture.value),
    )
    report, told = [], []
    for each in params:
        settings = measurement.settings(measurement.drafter, each)
        chose = {"split": split, "count": count, "turns": turns, "drafter_name": chosen}
        measured_on = {**settings, **chose, **measurement.drafted.means, **about_machine(loaded)}
        name = measurement.name(measurement.drafter, each)
        file = measurement.result_file(asked, name, measured_on)
        found = measurement.results(asked, each)
        file.add({"key": result.task, **asdict(result)} for result in found)
        report.append({"measured_on": measured_on, "file": str(file.path), "results": [asdict(r) for r in found]})
        told.append((measured_on, found))
        note(f"results: {file.path}")
        if show:
            _, answers = read_answers(out / f"{name}.jsonl")
            keep(loaded, asked, answers, ResultFile.beside(out, f"decoded-{name}", DECODED, measured_on), show)
    if as_json:
        print_json(report)
    else:
        for measured_on, found in told:
            _show(measured_on, found)
    if str(loaded.dtype) == "torch.float32":
        _refuse_changes([result for _, found in told for result in found])


def _refuse_changes(found: Sequence[Result]) -> None:
    """In float32 only a near-tie may come out otherwise than without the drafter."""
    changed = [r.task for r in found if r.lossless and any(margin > NEAR_TIE for margin in r.lossless.margins)]
    if changed:
        complain(
            f"answers of {', '.join(changed)} differ where the target's two likeliest tokens are more than "
            f"{NEAR_TIE:g} apart",
            "Decoding with the drafter must not change the output: please report this as a bug.",
        )
        raise typer.Exit(1)


def _show(measured_on: dict[str, Any], found: Sequence[Result]) -> None:
    console = results()
    hidden = ("versions", "head_digest", "template_digest")
    facts = [
        f"{key} {str(value)[:40]}" for key, value in measured_on.items() if value is not None and key not in hidden
    ]
    console.print("\n" + ", ".join(facts), soft_wrap=True)
    for table in (_headline(found), _background(found), _definitions(found), *_by_place(found)):
        console.print(table)


def _headline(found: Sequence[Result]) -> Table:
    table = _table("tau = kept tokens / rounds, pooled, with its 95 % bootstrap interval over requests")
    for column in ("prompts", "tau", "95 %", "before loops", "same output", "right"):
        table.add_column(column, justify="right", no_wrap=column in ("tau", "95 %"))
    for r in found:
        table.add_row(
            r.task,
            str(r.summary.requests),
            f"{r.summary.whole.tau:.2f}",
            _ends(r.summary.whole),
            f"{r.summary.before_loops.tau:.2f}",
            f"{r.lossless.identical} of {r.lossless.compared}" if r.lossless else "-",
            _right(r.accuracy),
        )
    return table


def _background(found: Sequence[Result]) -> Table:
    table = _table("What was asked, and how the answers compare with the plain ones")
    for column in ("source", "digest"):
        table.add_column(column, no_wrap=True)
    for column in ("looped", "tokens cut", "plain right", "margins"):
        table.add_column(column, justify="right", overflow="fold")
    for r in found:
        margins = ", ".join(f"{margin:.1e}" for margin in r.lossless.margins) if r.lossless else ""
        table.add_row(
            r.task,
            r.source,
            r.digest,
            f"{r.summary.looped} of {r.summary.requests}",
            f"{100 * r.summary.cut:.0f} %",
            _right(r.plain_accuracy),
            margins or "-",
        )
    return table


def _definitions(found: Sequence[Result]) -> Table:
    table = _table("The same rounds by others' definitions")
    names = ("Deep Spec", "z-lab", "z-lab new", "SG Lang", "Spec Forge", "vLLM", "Model Opt", "acc. rate", "rounds")
    for column in names:
        table.add_column(column, justify="right", overflow="fold")
    for r in found:
        f = r.summary.whole
        lengths = (f.tau_deepspec, f.tau_macro, f.tau_untrimmed, f.tau_sglang, f.tau_specforge, f.tau_vllm)
        shown = [f"{length:.2f}" for length in (*lengths, f.tau_modelopt)]
        table.add_row(r.task, *shown, f"{100 * f.accept_rate:.0f} %", str(f.rounds))
    return table


def _by_place(found: Sequence[Result]) -> list[Table]:
    def conditional(place: Place) -> str:
        return f"{place.conditional:.2f}\n({place.reached})" if place.reached else "-"

    def unconditional(place: Place) -> str:
        return f"{place.unconditional:.2f}\n({place.accepted})"

    tables: list[Table] = []
    places = max(len(r.summary.whole.places) for r in found)
    if not places:  # nothing was drafted
        return tables
    for title, cell in (
        ("Accepted of those reached, by place (reached)", conditional),
        ("Accepted of all drafts, by place (accepted)", unconditional),
    ):
        table = _table(title)
        for place in range(1, 1 + places):
            table.add_column(str(place), justify="right")
        for r in found:
            table.add_row(r.task, *map(cell, r.summary.whole.places))
        tables.append(table)
    return tables


def _table(title: str) -> Table:
    table = titled(title)
    table.add_column("task", no_wrap=True)
    return table


def _ends(figures: Figures) -> str:
    return f"{figures.interval.low:.2f}-{figures.interval.high:.2f}"


def _right(found: Accuracy | None) -> str:
    return f"{found.right} of {found.scored}" if found else "-"
