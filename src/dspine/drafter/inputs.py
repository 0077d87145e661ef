"""The inputs of what is recorded of a drafter, at addresses that stay.

One rule: whatever differs from one replay to the next is a number in one of these tensors; the host decides by nothing
that they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.kernels.law import Law
from dspine.kernels.upload import upload


@dataclass(frozen=True)
class DraftInputs:
    """The inputs of a draft of B rows, at addresses that stay.

    anchors, starts: (B,) int64. uniforms: (B, M) float32. law: its tensors are (B,).
    """

    anchors: Tensor
    starts: Tensor
    uniforms: Tensor
    law: Law

    @classmethod
    def of(cls, rows: int, places: int, greedy: bool, cuts: bool, device: torch.device) -> DraftInputs:
        """Of rows that draft from token 0, and nobody looks at what; `cuts`: whether any may truncate."""
        ones, zeros = [1.0] * rows, [0] * rows
        law = Law.of([0.0] * rows if greedy else ones, zeros, ones, [0.0] * rows, device)
        # Any row may come to be greedy or truncated: the host must not decide by what it holds now.
        cut = None if cuts else ()
        law = Law(law.temperature, law.top_k, law.top_p, law.min_p, greedy, drawn=False, cut=cut)
        anchors, starts = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        return cls(anchors, starts, torch.zeros(rows, places, device=device), law)

    def fill(self, anchors: Tensor, starts: Sequence[int], law: Law, uniforms: Tensor | None) -> None:
        """Take in the starts of all rows, and what the first of them are to do."""
        rows = len(anchors)
        self.starts.copy_(upload(starts, self.starts.device), non_blocking=True)
        pairs = [(self.anchors, anchors)]
        if uniforms is not None:
            names = ("temperature", "top_k", "top_p", "min_p")
            pairs += [(getattr(self.law, name), getattr(law, name)) for name in names]
            pairs.append((self.uniforms, uniforms))
        for held, new in pairs:
            held[:rows].copy_(new, non_blocking=True)


@dataclass(frozen=True)
class IntakeInputs:
    """Features (B, T, m·d) that a drafter takes in, with their tokens (B, T), at starts (B,)."""

    starts: Tensor
    features: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, rows: int, width: int, features: Tensor) -> IntakeInputs:
        """For the size and the number format of `features`."""
        made = features.new_zeros(rows, width, features.shape[2])
        starts, tokens = (torch.zeros(shape, dtype=torch.int64, device=made.device) for shape in (rows, (rows, width)))
        return cls(starts, made, tokens)

    def fill(self, starts: Sequence[int], features: Tensor, tokens: Tensor) -> None:
        """Take in the starts of all rows, and the first features of the first of them; what lies behind stays."""
        rows, width = tokens.shape
        self.starts.copy_(upload(starts, self.starts.device), non_blocking=True)
        self.features[:rows, :width].copy_(features)
        self.tokens[:rows, :width].copy_(tokens)
