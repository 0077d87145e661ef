"""`dspine generate`: one prompt, one answer."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dspine.cli import options as o
from dspine.cli.console import answer, note, notes, print_json, titled
from dspine.cli.mlx_models import MlxModels, open_mlx_models
from dspine.cli.models import Models, choose_drafter, counts, fastest_dtype, open_models, why_plain
from dspine.stages import StageClock, StageTime

if TYPE_CHECKING:
    from dspine.answer import Answer
    from dspine.decode.sampling import SamplingParams
    from dspine.target.chat import Speaker


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - or nothing reads it from standard input.", show_default=False)
    ] = None,
    target: o.TargetOption = "smollm2",
    drafter: o.DrafterOption = None,
    no_drafter: o.NoDrafterOption = False,
    dtype: o.DtypeOption = None,
    device: o.DeviceOption = None,
    backend: o.BackendOption = o.Backend.torch,
    bits: o.BitsOption = None,
    drafter_bits: o.DrafterBitsOption = None,
    verify: o.VerifyOption = None,
    measure: o.MeasureOption = False,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    rollback: o.RollbackOption = o.RollbackChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    system: o.SystemOption = None,
    thinking: o.ThinkingOption = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text itself: no chat template.", rich_help_panel=o.MODEL)
    ] = False,
    temperature: o.TemperatureOption = 0.0,
    top_k: o.TopKOption = 0,
    top_p: o.TopPOption = 1.0,
    min_p: o.MinPOption = 0.0,
    repetition_penalty: o.RepetitionPenaltyOption = 1.0,
    presence_penalty: o.PresencePenaltyOption = 0.0,
    frequency_penalty: o.FrequencyPenaltyOption = 0.0,
    seed: o.SeedOption = None,
    max_new_tokens: o.MaxNewTokensOption = 256,
    min_new_tokens: o.MinNewTokensOption = 0,
    stop: o.StopOption = None,
    ignore_eos: o.IgnoreEosOption = False,
    stream: Annotated[bool, typer.Option(help="Print the answer while it grows.", rich_help_panel=o.OUTPUT)] = True,
    stats: Annotated[
        bool, typer.Option("--stats", help="Report tokens, rounds, tau and speed.", rich_help_panel=o.OUTPUT)
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Report where a round's time goes.", rich_help_panel=o.OUTPUT)
    ] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Answer one prompt. The answer goes to standard output, everything else to standard error.

    Examples:

        dspine generate "Why is the sky blue?" --stats

        git diff | dspine generate - --system "Write a commit message." --temperature 0.7 --seed 1

        dspine generate "def fibonacci(n):" --raw --stop "def " --profile

        dspine generate "Why is the sky blue?" --backend mlx --bits 4 --stats
    """
    if raw and (system or thinking):
        raise typer.BadParameter("--raw uses no chat template, so --system and --thinking say nothing")
    chosen = choose_drafter(target, drafter, no_drafter, rollback)
    verified = o.verify_choice(verify, why_plain(target, no_drafter) if chosen is None else None, measure)
    forced = {"kernels": kernels.value, "rollback": rollback.value, "capture": capture.value}
    _check_backend(backend, bits, drafter_bits, measure or profile, forced)
    if chosen is None and drafter_bits is not None:
        raise typer.BadParameter(f"{why_plain(target, no_drafter)} leaves --drafter-bits nothing to do")
    text = o.read_prompt(prompt)
    params = o.sampling_params(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    mode = None if raw else thinking
    models: Models | MlxModels
    if backend is o.Backend.mlx:
        models = open_mlx_models(
            target,
            chosen,
            dtype=dtype,
            device=device,
            thinking=mode,
            verify=verify,
            bits=bits,
            drafter_bits=drafter_bits,
        )
    else:
        models = open_models(
            target,
            chosen,
            dtype=dtype or fastest_dtype(device),
            device=device,
            thinking=mode,
            verify=verified,
            measure=measure,
            kernels=kernels.value,
            rollback=rollback,
            capture=capture.value,
        )
    if chosen is None and not no_drafter:
        note(f"no drafter is shipped for {target}: decoding plainly; name one with --drafter")
    ids = _encode(models.target, text, system, raw, thinking)

    from dspine.answer import follow

    live = stream and not as_json
    clock = StageClock()
    with clock if profile else nullcontext():
        given = follow(models.engine, ids, params, answer if live else None)

    if as_json:
        print_json(_report(models, params, given, clock.table()))
        return
    answer("\n" if live else given.completion.text + "\n")
    if stats:
        _print_stats(models, params, given)
    if profile:
        notes.print(stage_table(clock.table(), len(given.completion.rounds)))


def _check_backend(
    backend: o.Backend, bits: int | None, drafter_bits: int | None, timed: bool, forced: dict[str, str]
) -> None:
    """Refuse options that the chosen backend would have to ignore."""
    if backend is o.Backend.torch and (bits is not None or drafter_bits is not None):
        raise typer.BadParameter("--bits and --drafter-bits need --backend mlx")
    if backend is o.Backend.mlx and (timed or any(choice != "auto" for choice in forced.values())):
        raise typer.BadParameter("--measure, --profile, --kernels, --capture and --rollback are the torch backend's")


def _encode(target: Speaker, text: str, system: str | None, raw: bool, thinking: bool) -> list[int]:
    from dspine.target.chat import refuse_broken, render

    if raw:
        refuse_broken(text)
        ids: list[int] = target.tokenizer.encode(text, verbose=False)
        return ids
    messages = [{"role": "system", "content": system}] if system else []
    return render(target, [*messages, {"role": "user", "content": text}], thinking=thinking)


def _report(
    models: Models | MlxModels, params: SamplingParams, given: Answer, stages: list[StageTime]
) -> dict[str, Any]:
    report = {
        "text": given.completion.text,
        "token_ids": list(given.completion.token_ids),
        "finish_reason": given.completion.finish_reason,
        "seed": given.completion.seed,
        **counts(given),
        "sampling": params.model_dump(mode="json", exclude={"processors"}),
        **models.measured_on(),
    }
    return report | ({"stages": [asdict(s) for s in stages]} if stages else {})


def _print_stats(models: Models | MlxModels, params: SamplingParams, given: Answer) -> None:
    from dspine.decode.policy import SHARED, split_lookup

    numbers, where = counts(given), models.measured_on()
    note(
        f"{numbers['completion_tokens']} tokens in {numbers['rounds']} rounds, {numbers['seconds']:.2f} s: "
        f"{numbers['tokens_per_second']:.1f} tokens/s, tau {numbers['tau']:.2f} (kept tokens / rounds)"
    )
    if where["verify"] is not None:
        rule, lookup = split_lookup(where["verify"])
        seeded = ", in full for its seed" if rule in SHARED and params.seed is not None else ""
        most = "" if lookup or models.network is None else f" of {models.network.candidates}"
        note(f"verified {numbers['verified']:.2f}{most} candidates a round (--verify {where['verify']}{seeded})")
    note(
        f"target {where['target']}, drafter {where['drafter'] or 'none'}, temperature {params.temperature:g}, "
        f"{where['dtype']} on {where['device']}"
    )


def stage_table(stages: list[StageTime], rounds: int) -> Table:
    """Seconds by stage, most expensive first; a stage inside another counts in both."""
    table = titled("Where the time went", "stage")
    for column in ("calls", "seconds", "ms a round"):
        table.add_column(column, justify="right")
    for s in sorted(stages, key=lambda s: -s.seconds):
        table.add_row(s.name, str(s.calls), f"{s.seconds:.3f}", f"{1000 * s.seconds / max(1, rounds):.2f}")
    return table
