"""One pass over blocks, at decoding and in training: the anchor and mask tokens in, whatever the network makes of them.

One rule: a network says in one function how it runs its layers over packed blocks; only where keys and values lie
differs between the two. Sources: DSpine (arXiv 2609.36173), DFlash (arXiv 2602.06036), section on training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from dspine.drafter.backbone import Attend, Backbone
from dspine.drafter.masks import Sight, block_mask, decoding_mask
from dspine.kernels.attention import grouped_attention
from dspine.kernels.kv import RowCache, Span

T = TypeVar("T")


@dataclass(frozen=True)
class BlockForm:
    """What a block looks like: `rows`, the first of which is the anchor, and what each layer's rows see."""

    rows: int
    mask_token_id: int
    sights: tuple[Sight, ...]

    def tokens(self, anchors: Tensor) -> Tensor:
        """Anchor token ids (...) → (..., rows): the anchor, then mask tokens."""
        tokens = anchors.new_full((*anchors.shape, self.rows), self.mask_token_id)
        tokens[..., 0] = anchors
        return tokens

    def masks(self, make: Callable[[Sight], Tensor]) -> tuple[Tensor, ...]:
        """The mask of each layer; layers that see alike share one."""
        made = {sight: make(sight) for sight in set(self.sights)}
        return tuple(made[sight] for sight in self.sights)


def decode_pass(
    form: BlockForm, cache: RowCache, first: int, anchors: Tensor, run: Callable[[Tensor, Tensor, Attend], T]
) -> T:
    """Run one block a row: anchors (B,) at the context lengths of the cache's rows first..first+B-1.

    Args:
        run: (tokens (B, rows), positions (B, rows), attend) → anything.
    """
    span = Span(first, tuple(cache.lengths[first : first + anchors.shape[0]]), form.rows)
    cache.open(span)
    masks = form.masks(lambda sight: decoding_mask(span, sight, anchors.device))

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return grouped_attention(query, *cache.write(layer, keys, values), masks[layer])

    return run(form.tokens(anchors), span.positions(anchors.device), attend)


def training_pass(
    form: BlockForm,
    backbone: Backbone,
    features: Tensor,
    lengths: Tensor,
    anchors: Tensor,
    known: Tensor,
    run: Callable[[Tensor, Tensor, Attend], T],
) -> T:
    """Run all blocks of a batch of sequences, packed.

    Args:
        features: (N, S, m·d), target features of positions 0..S-1, padded behind `lengths`, in the network's type.
        lengths: (N) int64, real positions of each sequence.
        anchors: (N, A) int64 positions; a block sees features strictly before its own.
        known: (N, A) int64, the anchors' tokens.
        run: (tokens (N, A·rows), positions (N, A·rows), attend) → anything.
    """
    batch, size = anchors.shape[0], features.shape[1]
    where = torch.arange(size, device=anchors.device).expand(batch, -1)
    context = backbone.context(features, where)
    masks = form.masks(lambda sight: block_mask(anchors, lengths, size, form.rows, sight))

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        before_keys, before_values = context[layer]
        return grouped_attention(
            query, torch.cat((before_keys, keys), dim=2), torch.cat((before_values, values), dim=2), masks[layer]
        )

    positions = anchors[..., None] + torch.arange(form.rows, device=anchors.device)  # (N, A, rows)
    return run(form.tokens(known).flatten(1), positions.flatten(1), attend)
