"""`dspine doctor`: why is acceptance low?"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, print_json
from dspine.cli.heavy import uncollected
from dspine.cli.models import SHIPPED_FOR, load_models

if TYPE_CHECKING:
    from dspine.evaluate.doctor import Diagnosis
    from dspine.target import Target

ROUGH = 12  # prompts


def doctor(
    target: Annotated[str, typer.Argument(help="The model: a hub id, a folder, a GGUF file, or a built-in name.")],
    drafter: Annotated[
        str | None, typer.Argument(help="A folder or a shipped name. Default: the one shipped for the target.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='JSONL of prompts like those it will meet, rows {"prompt": "..."}. Default: a few of ours; for nano, '
            "of its own text.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many prompts to ask.")] = ROUGH,
    max_new_tokens: o.MaxNewTokensOption = 128,
    thinking: o.ThinkingOption = False,
    dtype: o.ExactDtypeOption = None,
    device: o.DeviceOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Examine a target and a drafter, and name the likeliest cause of a low acceptance.

    It compares what the two say of each other, lets the drafter draft, and tries suspected corrections on the loaded
    network: other taps, rotary bases, mask tokens, rows, codes. What cannot be loaded is refused with the reason.

    Examples:

        dspine doctor nano

        dspine doctor Qwen/Qwen3-8B drafters/mine --prompts ours.jsonl --json
    """
    name = drafter or SHIPPED_FOR.get(target)
    if name is None:
        raise typer.BadParameter(f"no drafter is shipped for {target}: name one")
    loaded, _ = load_models(target, None, dtype=dtype, device=device)
    with uncollected():
        from dspine.checkpoint import CheckpointWarning, find_drafter, load_drafter
        from dspine.checkpoint.opening import open_checkpoint
        from dspine.evaluate.doctor import diagnose
        from dspine.target.chat import render

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # the diagnosis says it better
        network = load_drafter(name, loaded, packed=False)
    messages = _messages(loaded, prompts, count)
    ids = [render(loaded, [{"role": "user", "content": text}], thinking=thinking) for text in messages]
    config = open_checkpoint(find_drafter(name), loaded.num_layers).config
    found = diagnose(loaded, network, config, ids, thinking=thinking, max_new_tokens=max_new_tokens)
    if as_json:
        print_json(found.as_json())
    else:
        answer(_report(found))


def _messages(target: Target, prompts: Path | None, count: int) -> list[str]:
    """User messages to ask."""
    if prompts is not None:
        from dspine.evaluate.rows import read_rows

        return [row.turns[0] for row in read_rows(prompts)[:count]]
    if target.name == "nano":
        from dspine.train.nano.corpus import prompts as own

        return [row["messages"][0]["content"] for row in own(21, count)]
    from dspine.evaluate.sources import Source
    from dspine.evaluate.tasks import TASKS

    rows = [Source().rows(task) for task in TASKS.values()]
    turns = [each[number].turns[0] for number in range(max(map(len, rows))) for each in rows if number < len(each)]
    return turns[:count]


def _report(found: Diagnosis) -> str:
    pair, lines = found.pair, []

    def line(name: str, value: Any) -> None:
        lines.append(f"{name:<20}{value}")

    line("target", f"{pair.target}, {pair.target_dtype}")
    line("drafter", f"{pair.drafter} ({pair.kind}, {pair.layout} layout, {pair.digest[:12]}, {', '.join(pair.stored)})")
    line("taps", f"{', '.join(map(str, pair.taps))} of {pair.target_layers} layers")
    line("rope theta", f"{pair.rope_theta:g}, the target's {pair.target_rope_theta:g}")
    line("mask token", f"{pair.mask_token_id} ({pair.mask_token or 'beyond the tokenizer'})")
    drafts = "" if pair.draft_vocabulary is None else f", {pair.draft_vocabulary} drafted"
    line("vocabulary", f"{pair.head_rows} rows, {pair.readable_ids} readable{drafts}")
    said = {True: "the one of its training", False: "ANOTHER than in training", None: "not recorded"}
    line("chat template", f"{(pair.template_now or 'none')[:12]}, {said[pair.same_template]}")
    thought = {True: "on", False: "off", None: "not recorded"}
    line("thinking", f"{thought[pair.thinking_now]}, in training {thought[pair.thinking_recorded]}")
    if pair.codes is not None:
        codes = pair.codes
        rounded = f", rounded to {codes.rounded}" if codes.rounded else ""
        line(
            "codes",
            f"{codes.rows} x {codes.rank}, {codes.digest}, norms {codes.norms[0]:.4f}-{codes.norms[1]:.4f}{rounded}",
        )
    if pair.switched:
        line("switches", ", ".join(f"{name} {value}" for name, value in pair.switched.items()))
    before = "" if pair.trained_tau is None else f"; {pair.trained_tau:.2f} at the end of its training"
    line("tau", f"{found.tau:.2f} over {found.rounds} rounds of {found.prompts} prompts, greedy{before}")
    line("teacher-forced", "  ".join(f"{share:.3f}" for share in found.forced))
    line("generated", "  ".join(f"{share:.3f}" for share in found.generated))
    first = found.first_place
    line("place 1 at rounds", f"{first.teacher_forced:.3f} teacher-forced, {first.generated:.3f} generated")
    if found.cosine is not None:
        line("readout and code", f"cosine {found.cosine:.3f}")
    lines += ["", f"verdict: {found.verdict}"]
    for finding in found.findings:
        lines += [f"- {finding.cause}: {finding.says}", f"  {finding.fix}"]
    return "\n".join(lines) + "\n"
