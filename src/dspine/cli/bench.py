"""`dspine bench`: tokens a second, latency and the time of a round, with each drafter and without; or of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspine.cli import options as o
from dspine.cli.bench_tables import show
from dspine.cli.console import note, print_json
from dspine.cli.models import SHIPPED_FOR, load_models, load_network
from dspine.cli.prompts import CountOption, DataDirOption, HubOption, SplitOption, TasksOption, read_tasks

if TYPE_CHECKING:
    from dspine.decode.sampling import SamplingParams
    from dspine.evaluate.results import ResultFile
    from dspine.evaluate.sources import Asked

LOAD = "The load"


def bench(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(help="The model: a hub id, a folder, a GGUF file, a built-in name; its name on an --endpoint."),
    ],
    drafters: Annotated[
        list[str] | None,
        typer.Argument(help="Folders or shipped names. Default: the one shipped for the target.", show_default=False),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Measure a server of OpenAI's API instead, such as http://localhost:30000/v1. A key, if it wants one, "
            "is read from OPENAI_API_KEY.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Requests at once, with commas.", rich_help_panel=LOAD)
    ] = "1,2,4,8,16,32",
    waves: Annotated[
        int, typer.Option(min=1, help="A run has this many requests times the concurrency.", rich_help_panel=LOAD)
    ] = 2,
    runs: Annotated[int, typer.Option(min=1, help="Runs of everybody, in turn.", rich_help_panel=LOAD)] = 3,
    max_new_tokens: o.MaxNewTokensOption = 128,
    temperature: o.TemperatureOption = 0.0,
    tasks: TasksOption = "gsm8k,math500,humaneval,mbpp",
    data_dir: DataDirOption = None,
    hub: HubOption = False,
    split: SplitOption = "report",
    count: CountOption = None,
    dtype: o.ExactDtypeOption = None,
    device: o.DeviceOption = None,
    verify: o.FullVerifyOption = "full",
    rollback: o.RollbackOption = o.RollbackChoice.auto,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    predict: Annotated[
        str, typer.Option(help="Predict the speed-up at these concurrencies, by the cost table; '' predicts none.")
    ] = "1,2,4,8,16,32,64",
    out: Annotated[Path, typer.Option(help="Folder of the results; a repeat goes on there.")] = Path("runs/bench"),
    as_json: o.JsonOption = False,
) -> None:
    """Measure tokens a second and latency at several numbers of requests at once, and where a round's time goes.

    Plain decoding and every drafter take turns on the same prompts in one process, after a warm-up at the same
    concurrency; ratios are taken inside a turn. Every whole turn is kept, and the same command goes on with the next.

    Examples:

        dspine bench nano --concurrency 1,8

        dspine bench smollm2 smollm2-135m-dspine runs/dflash/drafter --data-dir DATA --json

        dspine bench Qwen/Qwen3-8B --endpoint http://localhost:30000/v1
    """
    if endpoint is not None:
        if drafters:
            raise typer.BadParameter("--endpoint measures a server as it runs: it takes no drafters")
        o.refuse_given(
            ctx,
            ("dtype", "device", "verify", "rollback", "kernels", "capture", "predict"),
            "--endpoint measures a server as it runs",
        )
    chosen = drafters or [name for name in [SHIPPED_FOR.get(target)] if name]
    if not chosen:
        o.refuse_given(ctx, ("verify", "rollback", "predict"), "no drafter is named, so that decoding is plain")
    levels = o.whole_numbers(concurrency, "--concurrency", least=1)
    foreseen = o.whole_numbers(predict, "--predict", least=1) if predict else []
    verified = o.verify_choice(verify)
    params = o.sampling_params(temperature=temperature, max_new_tokens=max_new_tokens)
    asked = read_tasks(tasks, data_dir=data_dir, hub=hub, split=split, count=count)
    load = _load(asked) | {"split": split, "temperature": temperature, "max_new_tokens": max_new_tokens}
    load |= {"waves": waves, "runs": runs}
    if endpoint is None:
        means: dict[str, Any] = {"verify": verified, "kernels": kernels.value, "capture": capture.value}
        file = _bench_here(target, chosen, asked, load, params, means, dtype, device, rollback, levels, foreseen, out)
    else:
        file = _bench_server(endpoint, target, asked, load, levels, out)
    if as_json:
        print_json({**file.head, "file": str(file.path), "results": list(file.lines.values())})
    else:
        show(file.head["measured_on"], list(file.lines.values()))
    note(f"results: {file.path}")


def _bench_here(
    target: str,
    drafters: Sequence[str],
    asked: Sequence[Asked],
    load: Mapping[str, Any],
    params: SamplingParams,
    means: Mapping[str, Any],
    dtype: o.Dtype | None,
    device: str | None,
    rollback: o.RollbackChoice,
    levels: Sequence[int],
    foreseen: Sequence[int],
    out: Path,
) -> ResultFile:
    names = {Path(name).name: name for name in drafters}
    if len(names) < len(drafters) or "plain" in names:
        raise typer.BadParameter("two drafters have one name, or one is called plain: rename a folder")
    loaded, _ = load_models(target, None, dtype=dtype, device=device, rollback=rollback)
    networks = {short: load_network(name, loaded, thinking=False) for short, name in names.items()}

    from dspine.checkpoint import drafter_digest
    from dspine.evaluate.contest import Contest
    from dspine.evaluate.measure import about_machine
    from dspine.evaluate.sources import mixed
    from dspine.evaluate.throughput import measure_contest, result_file
    from dspine.target.chat import render, template_digest

    prompts = [render(loaded, [{"role": "user", "content": prompt.text}]) for prompt in mixed(asked)]
    contest = Contest(loaded, networks, prompts, params, waves=load["waves"], runs=load["runs"], **means)
    measured_on = {
        "target": loaded.name,
        "head_digest": loaded.head_digest,
        "template_digest": template_digest(loaded),
        "thinking": False,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": str(loaded.device),
        "drafters": {short: drafter_digest(name) for short, name in names.items()},
        "verify": means["verify"] if names else None,
        **(loaded.brought_back if names else {}),
        **contest.means,
        **load,
        **about_machine(loaded),
    }
    file = result_file(out, Path(target).name, measured_on)
    measure_contest(contest, levels, foreseen, file)
    return file


def _bench_server(
    url: str, model: str, asked: Sequence[Asked], load: Mapping[str, Any], levels: Sequence[int], out: Path
) -> ResultFile:
    from dspine.endpoint import Endpoint
    from dspine.evaluate.sources import mixed
    from dspine.evaluate.throughput import measure_server, result_file

    server = Endpoint(url, model, os.environ.get("OPENAI_API_KEY"))
    file = result_file(out, f"server-{Path(model).name}", {"endpoint": url, "model": model, **load})
    texts = [prompt.text for prompt in mixed(asked)]
    limits = {name: load[name] for name in ("max_new_tokens", "temperature", "waves", "runs")}
    measure_server(server, texts, levels, file, **limits)
    return file


def _load(asked: Sequence[Asked]) -> dict[str, Any]:
    """What is asked, for the head of the results."""
    from dspine.evaluate.prompts import texts_digest

    return {
        "tasks": {each.task.name: {"source": each.source, "prompts": len(each.prompts)} for each in asked},
        "digests": {each.task.name: texts_digest(each.prompts) for each in asked},
    }
