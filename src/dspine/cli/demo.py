"""`dspine demo`: the main job on a real model, checked token for token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from dspine.cli import options as o
from dspine.cli.console import answer, complain, note, results, titled
from dspine.cli.heavy import uncollected
from dspine.cli.models import choose_drafter, fastest_dtype, open_models

if TYPE_CHECKING:
    from dspine.demo import Outcome


def demo(
    target: o.TargetOption = "smollm2",
    drafter: o.DrafterOption = None,
    dtype: o.DtypeOption = None,
    verify: o.VerifyOption = None,
    measure: o.MeasureOption = False,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    max_new_tokens: o.MaxNewTokensOption = 96,
    count: Annotated[int, typer.Option(min=1, help="How many of the demo's prompts to answer.")] = 4,
) -> None:
    """Answer a few prompts with and without the drafter, and check that not one token differs.

    Example:

        dspine demo
    """
    with uncollected():
        from dspine.decode.engine import Engine
        from dspine.demo import MARGIN, PROMPTS, peak_memory_gb, run_demo

    if count > len(PROMPTS):
        raise typer.BadParameter(f"--count {count}: the demo has {len(PROMPTS)} prompts")
    chosen = choose_drafter(target, drafter)
    if chosen is None:
        raise typer.BadParameter(f"the demo needs a drafter and none is shipped for {target}: name one with --drafter")
    models = open_models(
        target,
        chosen,
        dtype=dtype or fastest_dtype(None),
        verify=o.verify_choice(verify, measure=measure),
        measure=measure,
        kernels=kernels.value,
        capture=capture.value,
    )
    plain = Engine(models.target, max_batch=1, kernels=kernels.value, capture=capture.value)
    chosen_prompts = dict(islice(PROMPTS.items(), count))
    outcomes = list(
        run_demo(models.target, models.engine, plain, chosen_prompts, max_new_tokens, write=answer, tell=note)
    )

    results().print(_table(outcomes))
    where = models.measured_on()
    results().print(
        f"target {where['target']}, drafter {where['drafter']}, greedy, at most {max_new_tokens} new tokens, "
        f"{_verified(outcomes):.2f} candidates verified a round (--verify {where['verify']}), "
        f"{where['dtype']} on {where['device']}, peak memory {peak_memory_gb():.2f} GB",
        soft_wrap=True,
    )
    if any(not outcome.lossless for outcome in outcomes):
        complain(
            f"an answer differs where the target's two likeliest tokens are more than {MARGIN:g} apart",
            "Decoding with the drafter must not change the output: please report this as a bug.",
        )
        raise typer.Exit(1)


def _verified(outcomes: Sequence[Outcome]) -> float:
    """Candidates verified a round, of all prompts together."""
    rounds = [record for outcome in outcomes for record in outcome.drafted.completion.rounds]
    return sum(record.verified for record in rounds) / max(1, len(rounds))


def _table(outcomes: Sequence[Outcome]) -> Table:
    """One line a prompt and one for all of them; tau is kept tokens / rounds, of all prompts together in the last."""
    table = titled("Greedy decoding with and without the drafter")
    table.add_column("prompt")
    for column in ("tokens", "rounds", "tau", "plain s", "drafted s", "ratio", "equal"):
        table.add_column(column, justify="right", no_wrap=True)
    for outcome in outcomes:
        table.add_row(outcome.name, *cells([outcome]), outcome.verdict)
    table.add_section()
    table.add_row("all", *cells(outcomes), f"{sum(outcome.margin is None for outcome in outcomes)} of {len(outcomes)}")
    return table


def cells(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Tokens, rounds, tau, plain seconds, drafted seconds and their ratio, of all outcomes together."""
    from dspine.decode.records import pooled_tau

    drafted = [outcome.drafted.completion for outcome in outcomes]
    rounds = [record for completion in drafted for record in completion.rounds]
    fast = sum(outcome.drafted.seconds for outcome in outcomes)
    slow = sum(outcome.plain.seconds for outcome in outcomes)
    return (
        str(sum(len(completion.token_ids) for completion in drafted)),
        str(len(rounds)),
        f"{pooled_tau(drafted):.2f}",
        f"{slow:.2f}",
        f"{fast:.2f}",
        f"{slow / fast:.2f}x",
    )
