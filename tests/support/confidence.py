"""Drafters with made-up confidences: admissible ones, which follow from the token before each place alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dspine.drafter.proposal import Proposal
from dspine.kernels.kv import RowCache
from dspine.kernels.law import Law

SURE = (0.98, 0.2, 0.9, 0.6, 0.97, 0.85, 0.4)


class Confident:
    """A drafter that gives confidences besides: `levels` by the id of the token before a place, over and over."""

    confident = True

    def __init__(self, drafter: Any, levels: Sequence[float] = SURE) -> None:
        self._drafter = drafter
        self._levels = torch.tensor(levels)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        proposal = self._drafter.propose(cache, first, anchors, law, uniforms)
        before = torch.cat((anchors[:, None], proposal.tokens[:, :-1]), dim=1)
        return replace(proposal, confidence=self._levels[before % len(self._levels)])
