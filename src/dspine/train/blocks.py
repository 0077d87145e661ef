"""Anchors and blocks: which places of a response the drafter learns from.

One rule: what is drawn depends on (seed, epoch, sample) alone, never on the order of samples or on how a
window is split, so a run can be cut into micro-batches or resumed and still trains on the same blocks.
Source: DSpine (arXiv 2609.36173), training setup: anchors inside the response, a block is the anchor and
the M tokens after it, weights exp(-(i-1)/γ), supervision ends at the first place the loss mask leaves out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def keyed_random(stream: str, *key: int | str) -> np.random.Generator:
    """A random generator that is a function of `stream` and `key` only (stable over processes and machines)."""
    text = "\x1f".join([stream, *map(str, key)])
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def eligible_anchors(loss_mask: Tensor) -> Tensor:
    """Positions t where both t and t+1 are trained on: the anchor is of the response, and so is its first label.

    `loss_mask` (S,) bool. Returns (E,) int64, ascending; empty when the sample has no anchor.
    """
    mask = loss_mask.bool()
    return (mask[:-1] & mask[1:]).nonzero().flatten()


def draw_anchors(loss_mask: Tensor, count: int, *, seed: int, epoch: int, sample: str) -> Tensor:
    """Up to `count` anchors without replacement, ascending, (A,) int64."""
    positions = eligible_anchors(loss_mask)
    if len(positions) <= count:
        return positions
    draws = keyed_random("anchors", seed, epoch, sample).random(len(positions))
    chosen = np.sort(np.argsort(draws, kind="stable")[:count])
    return positions[torch.from_numpy(chosen)]


@dataclass(frozen=True)
class Blocks:
    """The blocks of N sequences, padded to the same number A of blocks a sequence.

    anchors (N, A) int64 positions (0 where invalid); valid (N, A) bool;
    tokens (N, A, M+1) int64: x_s .. x_{s+M}, the pad id 0 beyond the end of the sequence;
    supervised (N, A, M) bool: the label of this place counts.
    """

    anchors: Tensor
    valid: Tensor
    tokens: Tensor
    supervised: Tensor

    @property
    def count(self) -> int:
        """Real blocks (padding left out)."""
        return int(self.valid.sum())

    @property
    def labels(self) -> Tensor:
        """(N, A, M) the token each place is to predict."""
        return self.tokens[..., 1:]

    @property
    def predecessors(self) -> Tensor:
        """(N, A, M) the correct token before each place; the anchor before the first."""
        return self.tokens[..., :-1]


def cut_blocks(ids: Tensor, loss_mask: Tensor, lengths: Tensor, anchors: Sequence[Tensor], candidates: int) -> Blocks:
    """Cut the blocks of `candidates` = M places at the given anchors.

    ids (N, S) int64, loss_mask (N, S) bool, lengths (N,), anchors: one ascending (A_n,) tensor a sequence
    (may be empty). A place is supervised while every label up to it is inside the sequence and in the mask.
    """
    rows, size = ids.shape
    width = max(1, max((len(a) for a in anchors), default=1))
    position = torch.zeros(rows, width, dtype=torch.int64)
    valid = torch.zeros(rows, width, dtype=torch.bool)
    for row, drawn in enumerate(anchors):
        position[row, : len(drawn)] = drawn
        valid[row, : len(drawn)] = True
    position, valid = position.to(ids.device), valid.to(ids.device)

    places = position[..., None] + torch.arange(candidates + 1, device=ids.device)  # (N, A, M+1)
    inside = places < lengths.to(ids.device)[:, None, None]
    flat = places.clamp(max=size - 1).reshape(rows, -1)
    tokens = ids.gather(1, flat).view_as(places).masked_fill(~inside, 0)
    counted = loss_mask.bool().gather(1, flat).view_as(places) & inside & valid[..., None]
    supervised = counted[..., 1:].long().cumprod(-1).bool()
    return Blocks(position, valid, tokens, supervised)


def place_weights(candidates: int, gamma: float) -> Tensor:
    """w_t = exp(-(t-1)/γ) for the places t = 1..M, (M,) float64; the anchor (place 0) has none."""
    return torch.exp(-torch.arange(candidates, dtype=torch.float64) / gamma)
