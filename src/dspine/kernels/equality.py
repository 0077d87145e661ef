"""The check at start-up: do two implementations of the round's arithmetic give the same on this device?

One rule: it looks at what each returns on made-up inputs, one small block of odd sizes, and takes nothing for granted:
a driver or a compiler may be at fault where a test elsewhere passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dspine.kernels.arithmetic import Kernels
from dspine.kernels.injection import MessageWeights
from dspine.kernels.law import Law
from dspine.kernels.reference import unit_normalise

# How far sums of another order may lie apart, by number format: absolute and relative.
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}
BATCH, PLACES, WIDTH, RANK, SIZE, TOP, VOCAB = 2, 3, 72, 24, 20, 5, 40

Run = Callable[[Kernels], Any]


def first_difference(one: Kernels, other: Kernels, device: torch.device, dtype: torch.dtype) -> str | None:
    """The name of the first function that differs; None: all give the same, up to rounding."""
    with torch.inference_mode():
        for name, run in _cases(device, dtype):
            if not _same(run(one), run(other), CLOSE[dtype]):
                return name
    return None


def _same(one: Any, other: Any, close: float) -> bool:
    if isinstance(one, tuple):
        return all(_same(a, b, close) for a, b in zip(one, other, strict=True))
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one.float(), other.float(), atol=close, rtol=close)


def _walked(scores: Tensor, law: Law, uniforms: Tensor | None, kernels: Kernels) -> Any:
    return kernels.walk(scores, law, uniforms)


def _cases(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Run]]:
    random = torch.Generator().manual_seed(0)

    def made(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=random).to(device=device, dtype=kind)

    def ids(*shape: int) -> Tensor:
        return torch.rand(*shape, VOCAB, generator=random).argsort(-1)[..., :TOP].to(device)

    receives, sends, message = (made(SIZE, RANK) * RANK**-0.5 for _ in range(3))
    weights = MessageWeights(receives, sends, message, made(SIZE), RANK**0.5)
    said = made(BATCH, PLACES + 1, RANK)[:, 1:]  # a slice of rows, as they come
    codes = unit_normalise(made(VOCAB, RANK, kind=torch.float32))
    candidates = ids(BATCH, PLACES)
    yield "neighbour_message", lambda k: k.neighbour_message(said, codes[:BATCH], weights)
    yield "candidate_message", lambda k: k.candidate_message(said, codes, candidates, weights)
    block, written, scale = made(BATCH, PLACES + 1, WIDTH), made(BATCH, PLACES, WIDTH), made(WIDTH)
    yield "write_and_norm", lambda k: k.write_and_norm(block, written, scale, 1e-6)
    each, head = made(BATCH, PLACES, TOP, WIDTH), made(VOCAB, WIDTH) * WIDTH**-0.5
    yield "refined_scores", lambda k: k.refined_scores(block[:, 1:], each, scale, 1e-6, head, candidates)

    scores, noise = made(BATCH, PLACES, TOP, TOP), torch.rand(BATCH, PLACES + 1, generator=random).to(device)
    laws = {
        "greedy": Law.greedy_rows(BATCH, device),
        "sampled": Law.of([0.8, 0.0], [0, 3], [1.0, 0.8], [0.0, 0.1], device),
        "truncated": Law.of([1.0, 0.7], [3, 0], [0.9, 0.6], [0.0, 0.1], device),
    }
    for name, law in laws.items():
        yield f"walk ({name})", partial(_walked, scores, law, None if law.greedy else noise[:, :PLACES])
    p = torch.softmax(made(BATCH, PLACES + 1, VOCAB, kind=torch.float32), -1)
    q = torch.softmax(made(BATCH, PLACES, TOP, kind=torch.float32), -1)
    tokens, lengths = candidates[..., 0].contiguous(), torch.tensor([PLACES, PLACES - 1], device=device)
    yield "accept", lambda k: k.accept(p, tokens, candidates, q, noise, lengths)
    yield "accept (one-hot)", lambda k: k.accept(p, tokens, None, None, noise, lengths)
    choices = torch.cat((tokens, tokens[:, :1]), dim=1)
    yield "accept_greedy", lambda k: k.accept_greedy(choices, tokens, lengths)
