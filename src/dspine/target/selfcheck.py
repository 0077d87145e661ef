"""The start-up check of a model whose forward was not read by us.

One rule: what the target computes must be what the model itself computes, in one go and through a ragged cache
with rollback, or the model is refused by name. It takes a few forwards of a dozen tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from dspine.errors import TargetError
from dspine.kernels.kv import Span

LENGTH = 12
WINDOW = 4  # sliding layers are narrowed to this meanwhile, so that a dozen tokens leave the window
# Relative to the largest logit. The same numbers summed in another order stay far below; a wrong mask, a missing
# scale or a lost position lies far above.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
# What a model raises that was not made for an explicit mask, positions or a cache of ours.
_MISFITS = (AttributeError, TypeError, ValueError, RuntimeError, LookupError, NotImplementedError, AssertionError)

Result = TypeVar("Result")
Run = Callable[[Tensor, Span], Tensor]  # new tokens (B, T) -> logits (B, T, V), all through one cache


def probe_ids(decodable: int, device: torch.device) -> Tensor:
    """Fixed token ids (2, LENGTH) for the check."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(decodable, (2, LENGTH), generator=generator).to(device)


def check(name: str, model: Any, run: Run, ids: Tensor, dtype: torch.dtype) -> None:
    """Compare `run`, which goes through one new cache of two rows, with the model's own logits.

    Raises:
        AttentionUnsupported: a layer asks our attention for something that it does not know.
        TargetError: the logits differ, or the model cannot be run through the cache at all.
    """
    label = f"{name} ({type(model).__name__})"
    own = _attempt(label, "in its own forward", lambda: _own_logits(model, ids))
    allowed = TOLERANCE.get(dtype, 8e-2) * float(own.abs().max())
    ways = (("in one forward", _in_one_go), ("through a ragged cache with rollback", _ragged))
    for way, difference_of in ways:
        difference = _attempt(label, way, partial(difference_of, run, ids, own))
        if not difference <= allowed:  # NaN is refused too
            raise TargetError(
                f"{label}: {way}, its logits differ from its own by {difference:.3g} (allowed {allowed:.3g})",
                "This model is not supported: its layers need more than a mask, positions and a cache.",
            )


@torch.no_grad()
def _own_logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


def _in_one_go(run: Run, ids: Tensor, own: Tensor) -> float:
    return float((run(ids, Span(0, (0, 0), LENGTH)).float() - own).abs().max())


def _ragged(run: Run, ids: Tensor, own: Tensor) -> float:
    """Five tokens, three more that only row 1 keeps, then both rows go on from where they are."""
    run(ids[:, :5], Span(0, (0, 0), 5))
    tried = ids[:, 5:8].clone()
    tried[0] = ids[0, :3]
    run(tried, Span(0, (5, 5), 3))
    worst = 0.0
    for starts, width in (((5, 8), 4), ((9, 11), 1)):
        new = torch.stack([ids[row, start : start + width] for row, start in enumerate(starts)])
        logits = run(new, Span(0, starts, width)).float()
        for row, start in enumerate(starts):
            worst = max(worst, float((logits[row] - own[row, start : start + width]).abs().max()))
    return worst


def _attempt(label: str, way: str, action: Callable[[], Result]) -> Result:
    try:
        return action()
    except _MISFITS as error:
        raise TargetError(
            f"{label} cannot be run {way}: {type(error).__name__}: {error}",
            "Llama, Qwen2, Qwen3 and Mistral models, and those built like them, are supported.",
        ) from error
