"""One pass over blocks, at decoding and in training: the anchor and mask tokens in, whatever the network makes of them.

One rule: a network says in one function how it runs its layers over packed blocks; only where keys and values lie
differs between the two. Sources: DSpine (arXiv 2609.36173), DFlash (arXiv 2602.06036), section on training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dspine.drafter.backbone import Backbone
from dspine.drafter.flex import flex_attention_over
from dspine.drafter.masks import Placement, Sight, decoding_mask
from dspine.kernels.attention import grouped_attention
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.layer import Attend

T = TypeVar("T")
M = TypeVar("M")
WIDTH = 512  # slots of a packed context are a multiple of it: few shapes, since each is compiled


@dataclass(frozen=True)
class BlockForm:
    """What a block looks like: `rows`, the first of which is the anchor, and what each layer's rows see.

    attention: how training attends. "padded": one sequence a line, with a stored mask; "packed": all sequences end to
        end in one line, with a stored mask; "flex": so, with a computed one (CUDA; elsewhere forward alone). None:
        "flex" on CUDA, where what nobody sees costs nothing, else "padded".
    """

    rows: int
    mask_token_id: int
    sights: tuple[Sight, ...]
    attention: Literal["padded", "packed", "flex"] | None = None

    def tokens(self, anchors: Tensor) -> Tensor:
        """Anchor token ids (...) → (..., rows): the anchor, then mask tokens."""
        tokens = anchors.new_full((*anchors.shape, self.rows), self.mask_token_id)
        tokens[..., 0] = anchors
        return tokens

    def span(self, cache: RowCache, first: int, rows: int) -> Span:
        """Where the blocks of the cache's rows `first` and following lie: behind their contexts."""
        return Span(first, tuple(cache.lengths[first : first + rows]), self.rows)

    def masks(self, make: Callable[[Sight], M]) -> tuple[M, ...]:
        """The mask of each layer, in whatever form; layers that see alike share one."""
        made = {sight: make(sight) for sight in set(self.sights)}
        return tuple(made[sight] for sight in self.sights)


def decode_pass(
    form: BlockForm,
    cache: RowCache,
    span: Span | DeviceSpan,
    anchors: Tensor,
    run: Callable[[Tensor, Tensor, Attend], T],
) -> T:
    """Run one block a row.

    Args:
        span: where the blocks lie: behind the rows' contexts.
        anchors: (B,).
        run: (tokens (B, rows), positions (B, rows), attend) → anything.
    """
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
        run: (tokens, positions, attend) → anything; the tokens are (N, A·rows), or (1, N·A·rows) where the sequences
            are packed.
    """
    attention = form.attention or ("flex" if features.is_cuda else "padded")
    positions = torch.arange(features.shape[1], device=anchors.device).expand(features.shape[:2])
    place = Placement.padded
    if attention != "padded":
        features, positions = _end_to_end(features, positions, lengths)
        place = Placement.packed
    placement = place(anchors, lengths, features.shape[1], form.rows)
    context = backbone.context(features, positions)
    if attention == "flex":
        attends = form.masks(lambda sight: flex_attention_over(placement, sight))
    else:
        attends = form.masks(lambda sight: partial(grouped_attention, mask=placement.dense(sight)))

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        before_keys, before_values = context[layer]
        return attends[layer](query, torch.cat((before_keys, keys), dim=2), torch.cat((before_values, values), dim=2))

    rows = anchors[..., None] + torch.arange(form.rows, device=anchors.device)  # (N, A, rows) positions
    lines = len(placement.ends)
    return run(form.tokens(known).view(lines, -1), rows.view(lines, -1), attend)


def _end_to_end(features: Tensor, positions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Features (N, S, m·d) and positions (N, S) without their padding, in one line: (1, T, m·d) and (1, T)."""
    real = positions < lengths[:, None]
    features, positions = features[real], positions[real]
    missing = WIDTH - len(positions) % WIDTH
    return F.pad(features, (0, 0, 0, missing))[None], F.pad(positions, (0, missing))[None]
