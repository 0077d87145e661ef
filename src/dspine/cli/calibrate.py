"""`dspine calibrate`: the confidences of a drafter made to say how often candidates stand."""

from __future__ import annotations

from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json, waiting
from dspine.cli.models import SHIPPED_FOR, fastest_dtype, load_models
from dspine.cli.prompts import CountOption, DataDirOption, HubOption, SplitOption, TasksOption, read_tasks


def calibrate(
    target: Annotated[str, typer.Argument(help="The model: a hub id, a folder, a GGUF file, or a built-in name.")],
    drafter: Annotated[
        str | None, typer.Argument(help="A folder or a shipped name. Default: the one shipped for the target.")
    ] = None,
    tasks: TasksOption = "gsm8k,mbpp,mt_bench",
    data_dir: DataDirOption = None,
    hub: HubOption = False,
    split: SplitOption = "tune",
    count: CountOption = None,
    temperature: o.TemperatureOption = 1.0,
    max_new_tokens: o.MaxNewTokensOption = 128,
    batch: Annotated[int, typer.Option(min=1, help="Requests in progress at once.")] = 8,
    dtype: o.DtypeOption = None,
    device: o.DeviceOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Fit one temperature a place to a drafter's confidences, and keep them beside its weights.

    The drafter answers prompts that reports leave out (--split tune), with whole blocks verified; temperatures are
    chosen place by place so that products of confidences agree with how often candidates stood. Loading the drafter
    reads them.

    Example:

        dspine calibrate smollm2 runs/mine/drafter --data-dir DATA --count 50
    """
    chosen = drafter or SHIPPED_FOR.get(target)
    if chosen is None:
        raise typer.BadParameter(f"no drafter is shipped for {target}: name one")
    params = o.sampling_params(temperature=temperature, max_new_tokens=max_new_tokens)
    asked = read_tasks(tasks, data_dir=data_dir, hub=hub, split=split, count=count)
    loaded, network = load_models(target, chosen, dtype=dtype or fastest_dtype(device), device=device, thinking=False)

    from dspine.checkpoint import find_drafter
    from dspine.checkpoint.temperatures import write_temperatures
    from dspine.drafter.registry import confidence_head_of
    from dspine.evaluate.calibrate import calibrate as fitted
    from dspine.evaluate.prompts import texts_digest
    from dspine.evaluate.sources import mixed
    from dspine.target.chat import render

    head = confidence_head_of(network)
    if network is None or head is None:
        raise typer.BadParameter(f"{chosen} gives no confidences: train one with drafter.confidence: true")
    prompts = mixed(asked)
    ids = [render(loaded, [{"role": "user", "content": prompt.text}], thinking=False) for prompt in prompts]
    with waiting(f"Answering {len(ids)} prompts"):
        found = fitted(loaded, network, head, ids, params, batch=batch)
    facts = {
        "dataset": ",".join(each.task.name for each in asked),
        "source": ",".join(sorted({each.source for each in asked})),
        "split": split,
        "prompts": len(prompts),
        "digest": texts_digest(prompts)[:12],
        "temperature": temperature,
        "num_samples": found.rounds,
        "ece_before": found.ece_before,
        "ece_after": found.ece_after,
    }
    path = write_temperatures(find_drafter(chosen), found.temperatures, facts)
    note(
        f"expected calibration error {found.ece_before:.4f}, calibrated {found.ece_after:.4f}, "
        f"over {found.rounds} rounds"
    )
    if as_json:
        print_json({"file": str(path), "temperatures": list(found.temperatures), **facts})
    else:
        answer(" ".join(f"{each:.3f}" for each in found.temperatures) + f"\n{path}\n")
