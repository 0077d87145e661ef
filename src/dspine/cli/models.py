"""Loading the target and its drafter for a command, and saying what a number was measured on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from dspine.cli.console import note
from dspine.cli.options import Dtype, waiting

if TYPE_CHECKING:
    from dspine.answer import Answer
    from dspine.decode.engine import Engine

# The drafter that a built-in target is shipped with.
SHIPPED = {"smollm2": "smollm2-135m-dspine", "nano": "nano"}


def choose_drafter(target: str, drafter: str | None, no_drafter: bool) -> str | None:
    """The drafter to load: the one named, the one shipped for the target, or None for plain decoding.

    Raises:
        typer.BadParameter: a drafter named and refused at once.
    """
    if no_drafter:
        if drafter is not None:
            raise typer.BadParameter("--no-drafter and --drafter exclude each other")
        return None
    if drafter is None and target not in SHIPPED:
        note(f"No drafter is shipped for {target}: decoding plainly. Name one with --drafter.")
    return drafter or SHIPPED.get(target)


def open_engine(target: str, drafter: str | None, dtype: Dtype | None, device: str | None) -> Engine:
    """An engine over the target and, where there is one, its drafter.

    Raises:
        DspineError: a model that cannot be loaded, or a drafter that does not fit the target.
    """
    with waiting(f"Loading {target}"):
        import torch

        from dspine.checkpoint import load_drafter
        from dspine.decode.engine import Engine
        from dspine.target import load_target

        model = load_target(target, dtype=getattr(torch, dtype) if dtype else None, device=device)
        return Engine(model, load_drafter(drafter, model) if drafter else None, max_batch=1)


def measured_on(engine: Engine, drafter: str | None) -> dict[str, Any]:
    """What a number of this engine was measured on."""
    target = engine.target
    return {
        "target": target.name,
        "head_digest": target.head_digest,
        "drafter": drafter,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
    }


def counts(given: Answer) -> dict[str, Any]:
    """Tokens, rounds, tau and speed of an answer; tau = kept tokens / rounds, seconds with the prefill."""
    completion, usage = given.completion, given.completion.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "rounds": len(completion.rounds),
        "proposed": sum(r.proposed for r in completion.rounds),
        "accepted": sum(r.accepted for r in completion.rounds),
        "kept": sum(r.kept for r in completion.rounds),
        "tau": completion.tau,
        "seconds": given.seconds,
        "tokens_per_second": given.tokens_per_second,
    }
