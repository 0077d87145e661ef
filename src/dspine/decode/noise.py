"""The random numbers of a request: uniforms that are looked up, not consumed.

One rule: a value depends on (seed, stream, position) and on nothing else, so what a request draws does not depend
on the batch it runs in, nor on the order of the calls. Drafting, acceptance and the draw of the next token read
different streams: judged by the very noise it was drawn with, a candidate would stand too often and the output
would lean towards the drafter. Philox is a counter-based generator (Salmon et al., SC 2011); the stream is half of
its key, the position is its counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspine.kernels.upload import upload

Stream = Literal["draft", "accept", "next"]

_KEYS: dict[str, int] = {"draft": 1, "accept": 2, "next": 3}
_WORDS_PER_COUNTER = 4
SEED_LIMIT = 2**64


def uniforms(seed: int, stream: Stream, position: int, count: int) -> NDArray[np.float32]:
    """Uniforms of the absolute positions `position`, `position + 1`, …, `position + count - 1`.

    Who reads what in a round with anchor at position s and M candidates: the candidate at place i (1..M) is drawn
    with "draft" at s + i and judged with "accept" at s + i; the token that ends the round is drawn with "next" at
    s + 1, the first position that the round fills, because its own position is not known before the verdict. The
    prefill's token, at position s, is drawn with "next" at s. A value that was read for a void candidate decided
    nothing and may be read again. Plain decoding (M = 0) reads "next" alone.

    Args:
        seed: seed of the request, 0 <= seed < 2**64.
        stream: "draft", "accept" or "next".
        position: first absolute position, not negative.
        count: number of values.

    Returns:
        (count,) float32, each a multiple of 2**-24 in [0, 1): 1.0 is never reached.
    """
    key = np.array([seed, _KEYS[stream]], dtype=np.uint64)
    generator = np.random.Philox(key=key, counter=position)
    # One counter step yields four words; the first belongs to the position, the others are not used.
    words = generator.random_raw(_WORDS_PER_COUNTER * count)[::_WORDS_PER_COUNTER]
    # 24 bits fit float32's mantissa exactly; rounding more of them could give 1.0.
    return (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def uniform_rows(
    seeds: Sequence[int],
    stream: Stream,
    positions: Sequence[int],
    count: int,
    device: torch.device | str | None = None,
) -> Tensor:
    """`uniforms` of B requests, row b from (seeds[b], stream, positions[b]): (B, count) float32."""
    rows = np.empty((len(seeds), count), dtype=np.float32)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        rows[row] = uniforms(seed, stream, position, count)
    return upload(torch.from_numpy(rows), device)
