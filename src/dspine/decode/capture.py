"""Which parts of a round are recorded and replayed: the target's forward over blocks, and the drafter's work.

One rule: nothing is replayed that was not found to do what running it does. Every recording is checked when it is made
(`kernels/recording.py`); one of each is made at start-up, so that what cannot be recorded is said before the first
request. On a CPU there is nothing to record.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.drafter.captured import CapturedDraft
from dspine.drafter.proposal import Drafter, Recordable
from dspine.errors import ConfigError
from dspine.kernels.kv import Span
from dspine.kernels.law import Law
from dspine.kernels.recording import Capture, CaptureError, CudaRecorder, Recorder, read_capture
from dspine.target.captured import CapturedForward
from dspine.target.model import Forward, Target
from dspine.target.selfcheck import TOLERANCE, probe_ids

CONTEXT = 4  # positions before the block of the check
Recorders = Callable[[], Recorder]  # makes one for each part of a round


@dataclass(frozen=True)
class Parts:
    """What a round is made of: how the target goes over blocks, and the drafter.

    recorded: whether either is recorded, so that caches had better stay where they are.
    """

    forward: Forward
    drafter: Drafter | None
    recorded: bool = True


def captured(capture: Capture | Recorders, target: Target, drafter: Drafter | None) -> Parts:
    """The parts of a round, as CUDA graphs where that is asked for and possible.

    Args:
        capture: "off"; "on": all parts, or an error; "auto": on CUDA those parts that can be recorded and are found
            equal to what they were made of, with a warning where that check fails. Or what makes recorders, which is
            "on" by these.

    Raises:
        ConfigError: another choice, or "on" where a part cannot be recorded.
    """
    if not isinstance(capture, str):
        return recorded(target, drafter, capture, forced=True)
    choice = read_capture(capture)
    if choice == "off" or (choice == "auto" and target.device.type != "cuda"):
        return Parts(target.forward, drafter, recorded=False)
    if choice == "on" and target.device.type != "cuda":
        raise ConfigError(
            f"capture: recordings are CUDA graphs, and {target.name} is on {target.device.type}", "Use auto or off."
        )
    return recorded(target, drafter, CudaRecorder, forced=choice == "on")


def recorded(target: Target, drafter: Drafter | None, recorder: Recorders, *, forced: bool) -> Parts:
    """The parts of a round, recorded as far as they can be.

    Args:
        recorder: makes one for each part.
        forced: raise where a part cannot be recorded, instead of leaving it as it is.

    Raises:
        CaptureError: forced, and a part cannot be recorded or differs from what it was made of.
    """
    forward: Forward = target.forward
    draft: Drafter | None = drafter
    if forced or not target.stateful:  # forced, a target with states is refused by name
        with _tolerant(forced):
            forward = _verification(target, drafter, recorder(), forced)
    if isinstance(drafter, Recordable):
        with _tolerant(forced):
            draft = _draft(target, drafter, recorder(), forced)
    elif forced and drafter is not None:
        raise CaptureError(f"capture: a {type(drafter).__name__} cannot be recorded", "Use auto or off.")
    return Parts(forward, draft, recorded=draft is not drafter or isinstance(forward, CapturedForward))


@contextmanager
def _tolerant(forced: bool) -> Iterator[None]:
    """Unless forced, a part that cannot be recorded stays as it is, with a warning."""
    try:
        yield
    except CaptureError as fault:
        if forced:
            raise
        warnings.warn(f"{fault.what}; this part of a round runs unrecorded, slower", RuntimeWarning, stacklevel=5)


@torch.inference_mode()
def _verification(target: Target, drafter: Drafter | None, recorder: Recorder, forced: bool) -> Forward:
    """The recorded forward, after a look at one block of two rows that begin apart."""
    block, taps = (1, ()) if drafter is None else (drafter.block_size, drafter.target_layer_ids)
    forward = CapturedForward(target, recorder, block, forced=forced)
    checked = CapturedForward(target, recorder, block)
    ids = probe_ids(target.decodable, target.device)
    caches = [target.new_cache(2) for _ in range(2)]
    for cache in caches:
        target.forward(ids[:, :CONTEXT], cache, Span(0, (0, 0), CONTEXT))
    width = min(block, ids.shape[1] - CONTEXT)
    where = Span(0, (CONTEXT, CONTEXT - 1), width)
    new = ids[:, CONTEXT : CONTEXT + width]
    ours = checked(new, caches[0], where, taps)
    theirs = target.forward(new, caches[1], where, taps)
    for one, other in ((ours.hidden, theirs.hidden), (ours.features, theirs.features)):
        if one is not None and other is not None and not _near(one, other):
            raise CaptureError(f"capture: a recorded forward of {target.name} differs from its own", "Use off.")
    return forward


@torch.inference_mode()
def _draft(target: Target, drafter: Recordable, recorder: Recorder, forced: bool) -> CapturedDraft:
    """The recorded drafter, after one round, greedy: its recordings are checked as they are made."""
    cache, device, rows = drafter.new_cache(1), target.device, 1
    width = len(drafter.target_layer_ids) * target.hidden_size
    features = torch.zeros(rows, CONTEXT, width, dtype=target.dtype, device=device)
    ids = probe_ids(target.decodable, device)[:1, :CONTEXT]
    checked = CapturedDraft(drafter, recorder)
    checked.observe(cache, Span(0, (0,), CONTEXT), features, [CONTEXT], ids)
    checked.propose(cache, 0, ids[:, 0], Law.greedy_rows(rows, device), None)
    return CapturedDraft(drafter, recorder, forced=forced)


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs differ by rounding alone."""
    allowed = TOLERANCE.get(one.dtype, 8e-2) * float(other.float().abs().max())
    return float((one.float() - other.float()).abs().max()) <= allowed
