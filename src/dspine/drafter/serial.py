"""Place after place: the walk of drafters whose scores at a place need the token chosen before it.

One rule: a step sees the tokens before its place alone, so what it draws from is the law given those, which is q.
Sources: Domino (arXiv 2605.29707), DSpark (arXiv 2607.05147): serial heads over a parallel backbone; EAGLE-3
(arXiv 2503.01840): a layer a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dspine.drafter.tables import TargetTables
from dspine.kernels.law import Law

# (place t - 1 from 0, the tokens (B,) before it) → scores (B, V_d)
Step = Callable[[int, Tensor], Tensor]


def serial_walk(
    step: Step, anchors: Tensor, places: int, tables: TargetTables, law: Law, uniforms: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Choose the tokens of places 1..M, left to right.

    Args:
        anchors: (B,) what stands before place 1.
        uniforms: (B, M) in [0, 1); may be None when every row is greedy.

    Returns:
        tokens (B, M), and their laws, float32 (B, M, V_d), or None when every row is greedy (one-hot).
    """
    previous, tokens, laws = anchors, [], []
    for place in range(places):
        noise = None if uniforms is None else uniforms[:, place]
        previous, probs = tables.choose(step(place, previous), law, noise)
        tokens.append(previous)
        if probs is not None:
            laws.append(probs)
    return torch.stack(tokens, dim=1), torch.stack(laws, dim=1) if laws else None
