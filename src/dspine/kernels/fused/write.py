"""Write-back, RMS scale and the norm that reads the result, in one pass: a row is read once and written twice.

One rule: values are rounded where the definition rounds them, so that in half precision the two differ by the order of
a sum alone. Definition: `write_and_norm` of `kernels/injection.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine.kernels.fused.launch import dense_rows, power, tuned
from dspine.kernels.reference import TINY

_CONFIGS = [triton.Config({}, num_warps=warps) for warps in (4, 8, 16)]


@tuned(_CONFIGS, ["width"])
@triton.jit
def _write_kernel(
    block, written, weight, out, normed, size, width, eps, tiny,
    block_row, block_place, written_row, written_place, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, t = row // size, row % size  # row t = 0 of a block is the anchor, which hears nothing
    column = tl.arange(0, WIDTH)
    inside = column < width
    kind = out.dtype.element_ty
    u = tl.load(block + b * block_row + t * block_place + column, mask=inside, other=0.0).to(tl.float32)
    sender = column < tl.where(t > 0, width, 0)
    w = tl.load(written + b * written_row + (t - 1) * written_place + column, mask=sender, other=0.0).to(tl.float32)
    root = tl.sqrt(tl.sum(u * u, axis=0) / width + tiny).to(kind).to(tl.float32)
    h = (u + (root * w).to(kind).to(tl.float32)).to(kind)
    tl.store(out + row * width + column, h, mask=inside)
    h = h.to(tl.float32)
    factor = tl.rsqrt(tl.sum(h * h, axis=0) / width + eps)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * width + column, (h * factor * scale).to(kind), mask=inside)


def write_and_norm(block: Tensor, written: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `dspine.kernels.injection.write_and_norm`."""
    batch, size, width = block.shape
    block, written = dense_rows(block), dense_rows(written)
    out, normed = (torch.empty((batch, size, width), dtype=block.dtype, device=block.device) for _ in range(2))
    _write_kernel[(batch * size,)](
        block, written, weight.contiguous(), out, normed, size, width, eps, TINY,
        block.stride(0), block.stride(1), written.stride(0), written.stride(1), WIDTH=power(width),
    )  # fmt: skip
    return out, normed
