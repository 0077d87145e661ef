"""The gated message in one pass over G_q, G_p and A, normalisation and √r folded in.

One rule: a readout's norm and √r are factors of a whole row, so that they are applied to the sums, and no normalised
readout is ever written down. (The interpreter cannot multiply bfloat16: there, tiles are widened first.) Definitions:
`neighbour_message` and `candidate_message` of `kernels/injection.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine.kernels.fused.launch import INTERPRETED, dense_rows, tuned
from dspine.kernels.injection import MessageWeights
from dspine.kernels.reference import TINY

_CONFIGS = [
    triton.Config({"BLOCK_SIZE": size, "BLOCK_RANK": rank}, num_warps=warps, num_stages=stages)
    for size, rank, warps, stages in (
        (32, 128, 4, 3), (16, 128, 4, 4), (16, 256, 4, 3), (32, 64, 4, 4), (64, 64, 4, 3), (64, 128, 8, 3),
    )
]  # fmt: skip
ROWS = 16  # rows of a program: the least that a matrix unit takes


@tuned(_CONFIGS, ["rank", "size", "GATHER"])
@triton.jit
def _message_kernel(
    said, codes, before, receiver_gate, predecessor_gate, message, bias, out,
    rows, places, each, rank, size, scale, tiny,
    said_row, said_place, code_row, gate_q_row, gate_p_row, message_row,
    GATHER: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_RANK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)  # of (B, M, K); K = 1 without GATHER
    column = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    live = row < rows
    place = (row // each) % places
    receiver = said + (row // each // places).to(tl.int64) * said_row + place * said_place
    first = place == 0
    if GATHER:
        code = codes + tl.load(before + row, mask=live, other=0).to(tl.int64) * code_row
    else:
        code = codes + (row // places).to(tl.int64) * code_row
    kept = column < size
    at_q = receiver_gate + column[None, :] * gate_q_row
    at_p = predecessor_gate + column[None, :] * gate_p_row
    at_a = message + column[None, :] * message_row
    gate_q = tl.zeros((BLOCK_ROWS, BLOCK_SIZE), tl.float32)
    gate_p = tl.zeros((BLOCK_ROWS, BLOCK_SIZE), tl.float32)
    heard = tl.zeros((BLOCK_ROWS, BLOCK_SIZE), tl.float32)
    receiver_square = tl.zeros((BLOCK_ROWS,), tl.float32)
    sender_square = tl.zeros((BLOCK_ROWS,), tl.float32)
    for start in range(0, rank, BLOCK_RANK):
        r = start + tl.arange(0, BLOCK_RANK)
        inside = r < rank
        wanted = live[:, None] & inside[None, :]
        x = tl.load(receiver[:, None] + r[None, :], mask=wanted, other=0.0)
        if GATHER:
            y = tl.load(code[:, None] + r[None, :], mask=wanted, other=0.0).to(x.dtype)
        else:
            own = tl.load((receiver - said_place)[:, None] + r[None, :], mask=wanted & ~first[:, None], other=0.0)
            anchor = tl.load(code[:, None] + r[None, :], mask=wanted & first[:, None], other=0.0)
            y = tl.where(first[:, None], anchor.to(x.dtype), own)
        receiver_square += tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=1)
        sender_square += tl.sum(y.to(tl.float32) * y.to(tl.float32), axis=1)
        tile = inside[:, None] & kept[None, :]
        q = tl.load(at_q + r[:, None], mask=tile, other=0.0)
        p = tl.load(at_p + r[:, None], mask=tile, other=0.0)
        a = tl.load(at_a + r[:, None], mask=tile, other=0.0)
        if WIDE:
            x, y = x.to(tl.float32), y.to(tl.float32)
            q, p, a = q.to(tl.float32), p.to(tl.float32), a.to(tl.float32)
        gate_q = tl.dot(x, q, gate_q, input_precision=PRECISION)
        gate_p = tl.dot(y, p, gate_p, input_precision=PRECISION)
        heard = tl.dot(y, a, heard, input_precision=PRECISION)
    receiver_scale = scale * tl.rsqrt(receiver_square + tiny)
    sender_scale = scale * tl.rsqrt(sender_square + tiny)
    if GATHER:
        sender_scale = tl.full((BLOCK_ROWS,), 1.0, tl.float32) * scale  # a code is a unit vector already, or zero
    else:
        sender_scale = tl.where(first, scale, sender_scale)
    offset = tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)
    gate = tl.sigmoid(gate_q * receiver_scale[:, None] + gate_p * sender_scale[:, None] + offset[None, :])
    value = gate * heard * sender_scale[:, None]
    target = out + row.to(tl.int64)[:, None] * size + column[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=live[:, None] & kept[None, :])


def neighbour_message(said: Tensor, anchor: Tensor, weights: MessageWeights) -> Tensor:
    """As `dspine.kernels.injection.neighbour_message`."""
    out = said.new_empty(*said.shape[:2], len(weights.bias))
    _launch(said, anchor, None, weights, out)
    return out


def candidate_message(said: Tensor, codes: Tensor, before: Tensor, weights: MessageWeights) -> Tensor:
    """As `dspine.kernels.injection.candidate_message`."""
    out = said.new_empty(*before.shape, len(weights.bias))
    _launch(said, codes, before.contiguous(), weights, out)
    return out


def _launch(said: Tensor, codes: Tensor, before: Tensor | None, weights: MessageWeights, out: Tensor) -> None:
    said, codes = dense_rows(said), dense_rows(codes)
    gates = [dense_rows(w) for w in (weights.receiver_gate, weights.predecessor_gate, weights.message)]
    rows, size = out.numel() // out.shape[-1], out.shape[-1]
    _message_kernel[lambda meta: (triton.cdiv(rows, ROWS), triton.cdiv(size, meta["BLOCK_SIZE"]))](
        said, codes, codes if before is None else before, *gates, weights.bias.contiguous(), out,
        rows, said.shape[1], 1 if before is None else before.shape[2], said.shape[2], size, weights.scale, TINY,
        said.stride(0), said.stride(1), codes.stride(0), *(gate.stride(0) for gate in gates),
        GATHER=before is not None, WIDE=INTERPRETED, PRECISION="ieee" if said.dtype == torch.float32 else "tf32",
        BLOCK_ROWS=ROWS,
    )  # fmt: skip
