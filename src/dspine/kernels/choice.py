"""Which implementation of a round's arithmetic is used: the plain definitions, or the fused kernels beside them.

One rule: nothing is used that was not found equal to its definition here, on this device and in this number format;
where that fails, it is said.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch

from dspine.errors import ConfigError
from dspine.kernels.arithmetic import CPU, REFERENCE, Kernels
from dspine.kernels.equality import first_difference

Choice = Literal["auto", "reference", "fused"]
CHOICES: tuple[Choice, ...] = ("auto", "reference", "fused")
FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CPU_DTYPES = (torch.float32, torch.bfloat16)


def read_choice(choice: str) -> Choice:
    """A choice that is known.

    Raises:
        ConfigError: it is not.
    """
    for known in CHOICES:
        if choice == known:
            return known
    raise ConfigError(f"kernels: {choice!r} is no choice", f"It is one of {', '.join(CHOICES)}.")


def choose(choice: str, device: torch.device, dtype: torch.dtype) -> Kernels:
    """The kernels for a device and the number format of the drafter's (or target's) states.

    Args:
        choice: "reference" and "fused" force either; "auto": on CUDA the fused ones, on a CPU those made for it, if
            they are found equal.

    Raises:
        ConfigError: an unknown choice, or "fused" where they cannot run or differ from their definitions.
    """
    choice = read_choice(choice)
    made_for_cpu = choice == "auto" and device.type == "cpu"
    if choice == "reference" or (choice == "auto" and device.type not in ("cpu", "cuda")):
        return REFERENCE
    if made_for_cpu and dtype not in CPU_DTYPES:
        return REFERENCE
    fault = None if made_for_cpu else _absent(device, dtype)
    if fault is None:
        kernels = CPU if made_for_cpu else fused_kernels()
        fault = _unequal(kernels, device, dtype)
        if fault is None:
            return kernels
    if choice == "fused":
        raise ConfigError(*fault)
    warnings.warn(f"{fault[0]}; the plain definitions are used, which are slower", RuntimeWarning, stacklevel=2)
    return REFERENCE


@cache
def fused_kernels() -> Kernels:
    """The kernels, unchecked; imports triton."""
    from dspine.kernels.fused import accept as verdict
    from dspine.kernels.fused import message, scores, walk, write

    return Kernels(
        fused=True,
        neighbour_message=message.neighbour_message,
        candidate_message=message.candidate_message,
        write_and_norm=write.write_and_norm,
        refined_scores=scores.refined_scores,
        walk=walk.walk,
        accept=verdict.accept,
        accept_greedy=verdict.accept_greedy,
    )


def _absent(device: torch.device, dtype: torch.dtype) -> tuple[str, str] | None:
    """Why there are no fused kernels here, and what would help; None: there are."""
    if dtype not in FUSED_DTYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in FUSED_DTYPES)
        return f"kernels: {str(dtype).removeprefix('torch.')} has no fused kernels", f"Use {names}, or reference."
    if find_spec("triton") is None:
        return "kernels: triton is not installed", "pip install 'dspine[kernels]', or use reference."
    from dspine.kernels.fused.launch import INTERPRETED

    if device.type != "cuda" and not INTERPRETED:
        return (
            f"kernels: fused ones run on CUDA, and the model is on {device.type}",
            "Use reference; to try the kernels on a CPU, very slowly, set TRITON_INTERPRET=1.",
        )
    return None


@cache
def _unequal(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> tuple[str, str] | None:
    """Which function differs from its definition here, and what would help; None: none does."""
    found = first_difference(REFERENCE, kernels, device, dtype)
    if found is None:
        return None
    where = f"{str(dtype).removeprefix('torch.')} on {device}"
    return f"kernels: {found} of {where} differs from its definition", "Use reference, and please report this."
