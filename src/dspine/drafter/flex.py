"""Attention by a mask that is computed where it is needed and skipped where it is empty: flex attention, for training.

One rule: what is visible is said by `Placement.visible`, from which the stored mask is made too. Of packed sequences a
row sees one sequence's context and its own block; the rest of the tiles costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dspine.drafter.masks import Placement, Sight


def flex_attention_over(placement: Placement, sight: Sight) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention of all rows of blocks: query (N, H, A·rows, D), keys and values (N, G, S + A·rows, D) → as the query.

    Compiled on CUDA; elsewhere it is torch's slow definition, forward alone.
    """
    cuda = placement.ends.is_cuda
    mask = create_block_mask(
        placement.visible(sight),
        len(placement.ends),
        None,
        placement.queries,
        placement.keys,
        device=placement.ends.device,
        _compile=cuda,  # else all rows by all keys would be written out first
    )
    attention: Any = _compiled() if cuda else flex_attention

    def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        dtype = _product_dtype(query)
        out: Tensor = attention(query.to(dtype), keys.to(dtype), values.to(dtype), block_mask=mask, enable_gqa=True)
        return out

    return attend


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention)


def _product_dtype(query: Tensor) -> torch.dtype:
    """What autocast would take: flex attention is none of the operations that it knows."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
