"""The walk through the transition cache in one launch: a program a row of the batch, from left to right.

One rule: a candidate is drawn from the very float32 row that is written as q, and never one of probability 0.
Definition: `walk` of `kernels/reference.py`; equal scores are in the order of the candidates, as there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine.kernels.fused.launch import power
from dspine.kernels.law import Law


@triton.jit
def _best(score, k, live, TOP: tl.constexpr):
    """The first of the best scores; inside the row even where none is a number."""
    highest = tl.max(tl.where(live, score, float("-inf")), axis=0)
    found = tl.min(tl.where(live & (score == highest), k, TOP), axis=0)
    return tl.where(found < TOP, found, 0)


@triton.jit
def _drawn(law, uniform, k, TOP: tl.constexpr):
    """Inverse CDF in float64; the last id with mass where rounding leaves the mark behind the sums."""
    mass = law.to(tl.float64)
    sums = tl.cumsum(mass, axis=0)
    mark = uniform.to(tl.float64) * tl.max(sums, axis=0)
    found = tl.min(tl.where((sums > mark) & (law > 0), k, TOP), axis=0)
    last = tl.max(tl.where(law > 0, k, 0), axis=0)
    return tl.where(found < TOP, found, last)


@triton.jit
def _truncated(score, chance, k, live, top_k, top_p, min_p, TOP: tl.constexpr):
    """Top-k, then top-p over what it leaves, and min-p; renormalised."""
    ahead = (score[None, :] > score[:, None]) | ((score[None, :] == score[:, None]) & (k[None, :] < k[:, None]))
    ahead = ahead & live[None, :]
    rank = tl.sum(ahead.to(tl.int32), axis=1)
    chance = tl.where(rank >= tl.where(top_k > 0, top_k, TOP), 0.0, chance)
    wide = chance.to(tl.float64)
    before = tl.sum(tl.where(ahead, tl.broadcast_to(wide[None, :], (TOP, TOP)), 0.0), axis=1)
    total = tl.where(top_k > 0, tl.sum(wide, axis=0), 1.0)
    best = tl.sum(tl.where(rank == 0, chance, 0.0), axis=0)
    keep = (before < tl.where(top_p < 1, top_p.to(tl.float64) * total, float("inf"))) & (chance >= min_p * best)
    law = tl.where((keep | (rank == 0)) & live, wide, 0.0)
    return (law / tl.sum(law, axis=0)).to(tl.float32)


@triton.jit
def _walk_kernel(
    scores, temperature, top_k, top_p, min_p, uniforms, chosen, laws,
    places, top, score_row, score_place, score_each, uniform_row, GREEDY: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, TOP)
    live = k < top
    heat = tl.load(temperature + row)
    cut_k, cut_p, cut_m = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    cuts = (cut_k > 0) | (cut_p < 1) | (cut_m > 0)
    index = tl.zeros((), tl.int32)
    for t in range(places):
        at = scores + row * score_row + t * score_place + index * score_each
        score = tl.load(at + k, mask=live, other=float("-inf")).to(tl.float32)
        if GREEDY:
            index = _best(score, k, live, TOP)
        else:
            best = _best(score, k, live, TOP)
            heated = score / tl.where(heat == 0, 1.0, heat)
            weight = tl.where(live, tl.exp(heated - tl.max(heated, axis=0)), 0.0)
            plain = weight / tl.sum(weight, axis=0)
            cut = _truncated(heated, plain, k, live, cut_k, cut_p, cut_m, TOP)
            law = tl.where(heat == 0, (k == best).to(tl.float32), tl.where(cuts, cut, plain))
            law = tl.where(law == law, law, tl.where(live, 1.0 / top, 0.0))  # no numbers: as if all were alike
            tl.store(laws + (row * places + t) * top + k, law, mask=live)
            index = _drawn(law, tl.load(uniforms + row * uniform_row + t), k, TOP)
        tl.store(chosen + row * places + t, index.to(tl.int64))


def walk(scores: Tensor, law: Law, uniforms: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """As `dspine.kernels.reference.walk`."""
    if uniforms is None and not law.greedy:
        raise ValueError("a sampled walk needs uniforms (B, M)")
    batch, places, _, top = scores.shape
    scores = scores if scores.stride(3) == 1 else scores.contiguous()
    noise = law.temperature.expand(batch, -1) if uniforms is None else uniforms.contiguous()
    chosen = torch.empty((batch, places), dtype=torch.int64, device=scores.device)
    laws = None if law.greedy else torch.empty((batch, places, top), dtype=torch.float32, device=scores.device)
    _walk_kernel[(batch,)](
        scores, law.temperature, law.top_k, law.top_p, law.min_p, noise, chosen, chosen if laws is None else laws,
        places, top, *scores.stride()[:3], noise.stride(0), GREEDY=law.greedy, TOP=power(top, 2),
    )  # fmt: skip
    return chosen, laws
