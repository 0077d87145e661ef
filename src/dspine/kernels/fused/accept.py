"""The verdict in two launches, q on its support alone: nothing as wide as the vocabulary is made of it.

One rule: sums of the law run in float64, part by part in their order, and an id of probability 0 is never drawn.
The first launch judges the candidates and sums the law and the residual over parts of the vocabulary; the second finds
the part and the id. Definition: `kernels/accept.py`; a dense q goes there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine.kernels import accept as plain
from dspine.kernels.fused.launch import power

PART = 4096  # ids of a part


@triton.jit
def _accepted(
    target, tokens, support, probs, uniforms, length, row, places, top, target_row, target_place,
    ONE_HOT: tl.constexpr, PLACES: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """How many leading candidates of a row stand."""
    t = tl.arange(0, PLACES)
    k = tl.arange(0, TOP)
    considered = t < length
    token = tl.load(tokens + row * places + t, mask=considered, other=0)
    p = tl.load(target + row * target_row + t * target_place + token, mask=considered, other=0.0)
    if ONE_HOT:
        q = tl.full((PLACES,), 1.0, tl.float32)
    else:
        at = (row * places + t[:, None]) * top + k[None, :]
        seen = considered[:, None] & (k < top)[None, :]
        ids = tl.load(support + at, mask=seen, other=-1)
        q = tl.sum(tl.where(ids == token[:, None], tl.load(probs + at, mask=seen, other=0.0), 0.0), axis=1)
    u = tl.load(uniforms + row * (places + 1) + t, mask=considered, other=0.0)
    stands = considered & (u.to(tl.float64) * q.to(tl.float64) < p.to(tl.float64))
    return tl.min(tl.where(stands, PLACES, t), axis=0)


@triton.jit
def _mass(
    target, tokens, support, probs, row, place, rejected, start, places, top, size, target_row, target_place,
    ONE_HOT: tl.constexpr, TOP: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The law and the residual of a part of the vocabulary, float32; without a rejection the two are one."""
    column = start + tl.arange(0, PART)
    law = tl.load(target + row * target_row + place * target_place + column, mask=column < size, other=0.0)
    residual = law
    if rejected:
        if ONE_HOT:
            residual = tl.where(column == tl.load(tokens + row * places + place), law - 1.0, law)
        else:
            for k in range(top):
                at = (row * places + place) * top + k
                residual = tl.where(column == tl.load(support + at), residual - tl.load(probs + at), residual)
        residual = tl.where(residual > 0, residual, tl.where(residual == residual, 0.0, residual))
    return column, law, residual


@triton.jit
def _part_kernel(
    target, tokens, support, probs, uniforms, lengths, accepted, sums,
    places, top, size, parts, target_row, target_place,
    ONE_HOT: tl.constexpr, PLACES: tl.constexpr, TOP: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.minimum(tl.load(lengths + row), places)
    count = _accepted(
        target, tokens, support, probs, uniforms, length, row, places, top, target_row, target_place,
        ONE_HOT, PLACES, TOP,
    )  # fmt: skip
    _, law, residual = _mass(
        target, tokens, support, probs, row, count, count < length, part * PART, places, top, size,
        target_row, target_place, ONE_HOT, TOP, PART,
    )  # fmt: skip
    tl.store(sums + row * 2 * parts + part, tl.sum(residual.to(tl.float64), axis=0))
    tl.store(sums + (row * 2 + 1) * parts + part, tl.sum(law.to(tl.float64), axis=0))
    tl.store(accepted + row, count.to(tl.int64), mask=part == 0)


@triton.jit
def _draw_kernel(
    target, tokens, support, probs, uniforms, lengths, accepted, sums, chosen,
    places, top, size, parts, target_row, target_place,
    ONE_HOT: tl.constexpr, TOP: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(accepted + row)
    length = tl.minimum(tl.load(lengths + row), places)
    each = tl.arange(0, PARTS)
    held = tl.load(sums + row * 2 * parts + each, mask=each < parts, other=0.0)
    empty = tl.sum(held, axis=0) <= 0
    held = tl.where(empty, tl.load(sums + (row * 2 + 1) * parts + each, mask=each < parts, other=0.0), held)
    upto = tl.cumsum(held, axis=0)
    whole = tl.sum(tl.where(each == parts - 1, upto, 0.0), axis=0)
    mark = tl.load(uniforms + row * (places + 1) + places).to(tl.float64) * whole
    part = tl.min(tl.where((upto > mark) & (held > 0), each, PARTS), axis=0)
    part = tl.where(part < PARTS, part, tl.max(tl.where(held > 0, each, 0), axis=0))
    before = tl.sum(tl.where(each < part, held, 0.0), axis=0)
    column, law, residual = _mass(
        target, tokens, support, probs, row, count, (count < length) & (empty == 0), part * PART, places, top, size,
        target_row, target_place, ONE_HOT, TOP, PART,
    )  # fmt: skip
    mass = tl.where(empty, law, residual)
    inner = before + tl.cumsum(mass.to(tl.float64), axis=0)
    found = tl.min(tl.where((inner > mark) & (mass > 0), column, size), axis=0)
    last = tl.max(tl.where(mass > 0, column, 0), axis=0)  # where rounding leaves the mark behind the sums
    found = tl.where(found < size, found, last)
    # A law that is not a number draws nothing: the id behind the vocabulary says so.
    tl.store(chosen + row, tl.where(whole == whole, found, size).to(tl.int64))


@triton.jit
def _greedy_kernel(choices, tokens, lengths, accepted, chosen, places, choice_row, token_row, PLACES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, PLACES)
    considered = t < tl.minimum(tl.load(lengths + row), places)
    choice = tl.load(choices + row * choice_row + t, mask=considered, other=0)
    stands = considered & (choice == tl.load(tokens + row * token_row + t, mask=considered, other=0))
    count = tl.min(tl.where(stands, PLACES, t), axis=0)
    tl.store(accepted + row, count.to(tl.int64))
    tl.store(chosen + row, tl.load(choices + row * choice_row + count))


def accept(
    target_probs: Tensor,
    tokens: Tensor,
    support: Tensor | None,
    probs: Tensor | None,
    uniforms: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """As `dspine.kernels.accept.accept`."""
    if probs is not None and support is None:
        return plain.accept(target_probs, tokens, support, probs, uniforms, lengths)
    batch, places = tokens.shape
    size = target_probs.shape[2]
    target_probs = target_probs if target_probs.stride(2) == 1 else target_probs.contiguous()
    tokens, uniforms = tokens.contiguous(), uniforms.contiguous()
    top = 1 if support is None else support.shape[2]
    ids = tokens if support is None else support.contiguous()
    chances = uniforms if probs is None else probs.contiguous()
    parts = triton.cdiv(size, PART)
    device = target_probs.device
    accepted, chosen = (torch.empty(batch, dtype=torch.int64, device=device) for _ in range(2))
    sums = torch.empty((batch, 2, parts), dtype=torch.float64, device=device)
    strides, form = target_probs.stride()[:2], {"ONE_HOT": support is None, "TOP": power(top), "PART": PART}
    _part_kernel[(batch, parts)](
        target_probs, tokens, ids, chances, uniforms, lengths, accepted, sums, places, top, size, parts, *strides,
        PLACES=power(places + 1), **form,
    )  # fmt: skip
    _draw_kernel[(batch,)](
        target_probs, tokens, ids, chances, uniforms, lengths, accepted, sums, chosen,
        places, top, size, parts, *strides, PARTS=power(parts), **form,
    )  # fmt: skip
    return accepted, chosen


def accept_greedy(choices: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """As `dspine.kernels.accept.accept_greedy`."""
    batch, places = tokens.shape
    choices, tokens = (x if x.stride(1) == 1 else x.contiguous() for x in (choices, tokens))
    accepted, chosen = (torch.empty(batch, dtype=torch.int64, device=choices.device) for _ in range(2))
    _greedy_kernel[(batch,)](
        choices, tokens, lengths.contiguous(), accepted, chosen, places, choices.stride(0), tokens.stride(0),
        PLACES=power(places + 1),
    )  # fmt: skip
    return accepted, chosen
