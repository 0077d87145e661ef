"""Fixture F4: a DSpine drafter of two layers over the tiny target (F1).

Its writes and gates start at zero as always; `lively` gives them weight, so that a test of what the injection does
has something to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tests.support.tiny_target import MASK

from dspine.drafter import DSpine, DSpineConfig, TransferSpace
from dspine.target.model import Target

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "target_layer_ids": (1, 3),
    "transfer_rank": 16,
    "message_size": 8,
    "top_k": 4,
    "block_size": 4,
}


def tiny_drafter(
    target: Target,
    *,
    draft_ids: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    lively: bool = False,
    **overrides: Any,
) -> DSpine:
    """An untrained drafter for `target`.

    Args:
        draft_ids: restricted draft vocabulary, ascending.
        lively: random writes, gates and bias instead of zeros.
        overrides: fields of `DSpineConfig`.
    """
    config = DSpineConfig.for_target(target.facts, MASK, **{**SIZES, **overrides})
    ids = None if draft_ids is None else torch.tensor(draft_ids)
    space = TransferSpace.fit(target.head_weight.float(), config.transfer_rank)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter = DSpine(config, target.embedding, target.head_weight.to(dtype), space, ids).to(dtype)
        if lively:
            enliven(drafter)
    return drafter


@torch.no_grad()
def enliven(drafter: DSpine) -> None:
    """Give writes, predecessor gate and bias random values."""
    for name, parameter in drafter.injection.named_parameters():
        if name.startswith(("writes", "predecessor_gate", "bias", "farther")):
            torch.nn.init.normal_(parameter, std=0.3)
