"""Loading the target and its drafter for a command, and saying what a number was measured on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dspine.cli.console import note, waiting
from dspine.cli.heavy import uncollected
from dspine.cli.options import Dtype, RollbackChoice
from dspine.errors import TargetError

if TYPE_CHECKING:
    from dspine.answer import Answer
    from dspine.decode.engine import Engine
    from dspine.decode.policy import Verify
    from dspine.drafter.proposal import Drafter
    from dspine.kernels.choice import Choice
    from dspine.kernels.recording import Capture
    from dspine.target import Target

# The drafter that a built-in target is shipped with.
SHIPPED_FOR = {"smollm2": "smollm2-135m-dspine", "nano": "nano"}


@dataclass(frozen=True)
class Models:
    """A target, its drafter by name and as a network (None: decode plainly), and an engine.

    verify: how many candidates the engine verifies; None where there are none to verify.
    """

    target: Target
    drafter: str | None
    network: Drafter | None
    engine: Engine
    verify: Verify | None

    def measured_on(self) -> dict[str, Any]:
        """What a number that this engine gave was measured on."""
        from dspine.checkpoint import drafter_digest

        return {
            "target": self.target.name,
            "head_digest": self.target.head_digest,
            "drafter": self.drafter,
            "drafter_digest": drafter_digest(self.drafter) if self.drafter else None,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "device": str(self.target.device),
            "verify": self.verify,
            **({} if self.drafter is None else self.target.brought_back),
            **self.engine.means,
        }


def choose_drafter(
    target: str,
    drafter: str | None,
    no_drafter: bool = False,
    rollback: RollbackChoice = RollbackChoice.auto,
) -> str | None:
    """The drafter to load: the one named, the one shipped for the target, or None for plain decoding.

    Raises:
        typer.BadParameter: a drafter named and refused at once, or a way to bring back what nobody drafts.
    """
    if no_drafter and drafter is not None:
        raise typer.BadParameter("--no-drafter and --drafter exclude each other")
    chosen = None if no_drafter else drafter or SHIPPED_FOR.get(target)
    if chosen is None and rollback is not RollbackChoice.auto:
        raise typer.BadParameter(f"{why_plain(target, no_drafter)} leaves --rollback nothing to do")
    return chosen


def why_plain(target: str, no_drafter: bool) -> str:
    """What leaves an option about drafts nothing to do, where none are made."""
    return "--no-drafter" if no_drafter else f"no drafter is shipped for {target} and none named (--drafter), which"


def load_models(
    target: str,
    drafter: str | None,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
    thinking: bool | None = None,
    rollback: RollbackChoice = RollbackChoice.auto,
    packed: bool = True,
) -> tuple[Target, Drafter | None]:
    """Load a target and, if one is named, its drafter.

    Args:
        dtype: of the target; None: as `load_target` chooses.
        rollback: how its states are brought back.
        packed: whether the drafter is arranged for decoding alone, see `load_drafter`.

    Raises:
        DspineError: a model that cannot be loaded, a drafter that does not fit the target, or a way to bring back
            states that the target does not keep.
    """
    with waiting(f"Loading {target}"), uncollected():
        import torch

        from dspine.target import load_target

        refuse_drafter(target)
        kind = getattr(torch, dtype) if dtype else None
        loaded = load_target(target, dtype=kind, device=device, rollback=rollback.value)
        network = load_network(drafter, loaded, thinking=thinking, packed=packed) if drafter else None
    return loaded, network


def refuse_drafter(target: str) -> None:
    """Refuse a drafter's folder in the place of a target, of which it would only be said that weights are missing.

    Raises:
        TargetError: saying where each belongs.
    """
    from dspine.checkpoint import SHIPPED
    from dspine.checkpoint.opening import is_drafter

    folder = Path(target).expanduser()
    named = target in SHIPPED and target not in SHIPPED_FOR
    if named or ((folder / "config.json").is_file() and is_drafter(folder)):
        raise TargetError(
            f"{target} is a drafter, which answers nothing by itself",
            "Name its model as the target, and this folder as the drafter (--drafter, or behind the target).",
        )


def load_network(drafter: str, target: Target, *, thinking: bool | None = None, packed: bool = True) -> Drafter:
    """A drafter for a target that is loaded already; warnings are told as notes.

    Raises:
        DspineError: it cannot be loaded, or does not fit the target.
    """
    from dspine.checkpoint import CheckpointWarning, load_drafter

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        network = load_drafter(drafter, target, thinking=thinking, packed=packed)
    for warning in caught:
        note(f"warning: {warning.message}")
    return network


def open_models(
    target: str,
    drafter: str | None,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
    thinking: bool | None = None,
    verify: Verify = "full",
    measure: bool = False,
    kernels: Choice = "auto",
    capture: Capture = "auto",
    max_batch: int = 1,
    rollback: RollbackChoice = RollbackChoice.auto,
) -> Models:
    """Load a target and its drafter as `load_models`, and make an engine.

    Args:
        verify: how many candidates to verify.
        measure: whether to measure anew what rounds cost here.
        kernels: whose arithmetic a round uses.
        capture: whether a round is recorded and replayed.
        max_batch: most requests of the engine at once.
        rollback: how states of the target are brought back.

    Raises:
        DspineError: a model that cannot be loaded, a drafter that does not fit the target, or kernels or recordings
            that cannot run.
    """
    loaded, network = load_models(target, drafter, dtype=dtype, device=device, thinking=thinking, rollback=rollback)

    from dspine.decode.engine import Engine
    from dspine.decode.policy import split_lookup

    engine = Engine(
        loaded,
        network,
        max_batch=max_batch,
        verify=verify,
        costs="anew" if measure else None,
        kernels=kernels,
        capture=capture,
    )
    said = network is not None or split_lookup(verify)[1] > 0
    return Models(loaded, drafter, network, engine, verify if said else None)


def fastest_dtype(device: str | None) -> Dtype | None:
    """What to answer in where nobody asks for a number format: bfloat16 on a CPU that it serves, else None."""
    import torch

    from dspine.kernels.alike import bfloat16_serves

    on_cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
    return Dtype.bfloat16 if on_cpu and bfloat16_serves() else None


def counts(given: Answer) -> dict[str, Any]:
    """Tokens, rounds and speed of an answer, seconds with the prefill.

    tau is kept tokens / rounds, verified is proposed candidates / rounds.
    """
    completion, usage = given.completion, given.completion.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "rounds": len(completion.rounds),
        "proposed": sum(r.verified for r in completion.rounds),
        "accepted": sum(r.accepted for r in completion.rounds),
        "kept": sum(r.kept for r in completion.rounds),
        "tau": completion.tau,
        "verified": completion.verified,
        "seconds": given.seconds,
        "tokens_per_second": given.tokens_per_second,
    }
