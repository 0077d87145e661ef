"""Where two answers to one prompt first differ, and how nearly the target is tied there.

One rule: a margin is only given where both tokens are the target's two likeliest; any other difference is no near-tie,
and its margin is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dspine.kernels.kv import Span
from dspine.target.model import Target


def first_margin(target: Target, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]) -> float | None:
    """How close the target is to a tie at the first difference of two answers, in logits.

    Returns:
        None if the answers are the same; infinity if one merely ends earlier, or if a token there is not among
        the target's two likeliest; else the difference of the two largest logits.
    """
    if list(one) == list(other):
        return None
    common = min(len(one), len(other))
    same = next((i for i in range(common) if one[i] != other[i]), common)
    if same == common:  # one is the beginning of the other
        return float("inf")
    ids = torch.tensor([[*prompt, *one[:same]]], device=target.device)
    span = Span(first=0, starts=(0,), width=ids.shape[1], whole=True)
    hidden = target.forward(ids, target.new_cache(1), span).hidden
    top = target.logits(hidden[0, -1]).float().topk(2)
    if {one[same], other[same]} != set(top.indices.tolist()):
        return float("inf")
    return float(top.values[0] - top.values[1])
