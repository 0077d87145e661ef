"""Transition scores: the residual, the final norm and K dot products with gathered head rows, from all writes at once.

One rule: neither the refined states nor the gathered rows of the head are ever written down. The norm is a factor of a
whole row of scores, so it is applied to the sums. The width is split into parts by its size alone, and the parts are
added in their order, so that a score does not depend on the batch or on which program was faster.
Definition: `refined_scores` of `kernels/injection.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine.kernels.fused.launch import dense_rows, power, tuned
from dspine.kernels.reference import TINY

PART = 512  # columns of a part: at batch 1 and d = 4096, 15 places become 120 programs
_CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps, num_stages=stages)
    for block, warps, stages in ((64, 4, 3), (128, 4, 3), (128, 8, 2), (256, 8, 2))
]


@tuned(_CONFIGS, ["width", "TOP"])
@triton.jit
def _part_kernel(
    last, written, weight, head, candidates, dots, squares,
    places, top, width, tiny,
    last_row, last_place, written_row, written_place, written_each, head_row,
    PART: tl.constexpr, TOP: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part, parts = tl.program_id(1), tl.num_programs(1)
    b, t = row // places, row % places
    kind = last.dtype.element_ty
    state = last + b * last_row + t * last_place
    whole = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        u = tl.load(state + column, mask=column < width, other=0.0).to(tl.float32)
        whole += u * u
    root = tl.sqrt(tl.sum(whole, axis=0) / width + tiny).to(kind).to(tl.float32)

    k = tl.arange(0, TOP)
    live = k < top
    token = tl.load(candidates + row * top + k, mask=live, other=0).to(tl.int64)
    write = written + b * written_row + t * written_place + k * written_each
    dot = tl.zeros((TOP, TOP), tl.float32)
    square = tl.zeros((TOP,), tl.float32)
    for start in range(0, PART, BLOCK):
        column = part * PART + start + tl.arange(0, BLOCK)
        inside = (column < width) & (start + tl.arange(0, BLOCK) < PART)
        u = tl.load(state + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(write[:, None] + column[None, :], mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
        e = tl.load(head + token[None, :] * head_row + column[:, None], mask=live[None, :] & inside[:, None], other=0.0)
        h = (u[None, :] + (root * w).to(kind).to(tl.float32)).to(kind).to(tl.float32)
        square += tl.sum(h * h, axis=1)
        # float32 products: before the norm a state may be beyond what float16 holds.
        dot = tl.dot(h * g[None, :], e.to(tl.float32), dot, input_precision=PRECISION)
    at = (row * parts + part) * TOP + k
    tl.store(squares + at, square)
    tl.store(dots + at[:, None] * TOP + k[None, :], dot)


@triton.jit
def _sum_kernel(dots, squares, out, parts, top, width, eps, TOP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, TOP)
    dot = tl.zeros((TOP, TOP), tl.float32)
    square = tl.zeros((TOP,), tl.float32)
    for part in range(parts):
        at = (row * parts + part) * TOP + k
        square += tl.load(squares + at)
        dot += tl.load(dots + at[:, None] * TOP + k[None, :])
    score = dot * tl.rsqrt(square / width + eps)[:, None]
    target = out + (row * top + k[:, None]) * top + k[None, :]
    tl.store(target, score.to(out.dtype.element_ty), mask=(k < top)[:, None] & (k < top)[None, :])


def refined_scores(
    last: Tensor, written: Tensor, weight: Tensor, eps: float, head: Tensor, candidates: Tensor
) -> Tensor:
    """As `dspine.kernels.injection.refined_scores`."""
    last, written, head = dense_rows(last), dense_rows(written), dense_rows(head)
    batch, places, top = candidates.shape
    width, rows, size = last.shape[-1], batch * places, power(top, 16)
    parts = triton.cdiv(width, PART)
    dots = torch.empty((rows, parts, size, size), dtype=torch.float32, device=last.device)
    squares = torch.empty((rows, parts, size), dtype=torch.float32, device=last.device)
    out = torch.empty((batch, places, top, top), dtype=last.dtype, device=last.device)
    _part_kernel[(rows, parts)](
        last, written, weight.contiguous(), head, candidates.contiguous(), dots, squares,
        places, top, width, TINY,
        last.stride(0), last.stride(1), *written.stride()[:3], head.stride(0),
        PART=PART, TOP=size, PRECISION="ieee" if last.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    _sum_kernel[(rows,)](dots, squares, out, parts, top, width, eps, TOP=size)
    return out
