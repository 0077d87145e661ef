"""From scores to the law that a token is drawn from, on the device: `kernels/law.py` for one request.

One rule: one function makes the law of the target and of the drafter alike, and what is drawn is drawn from the very
array that is later called p or q. Apple's GPUs have no float64, so a draw sums in two short stages instead of one long
one. Source: DSpine (arXiv 2609.36173), section on sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from dspine.decode.sampling import SamplingParams

STRETCH = 512  # ids that are summed at a time


@dataclass(frozen=True)
class Law:
    """Sampling parameters of a request; temperature 0 is greedy, top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, params: SamplingParams) -> Law:
        return cls(params.temperature, params.top_k, params.top_p, params.min_p)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether some tokens are left out."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def law_probs(scores: mx.array, law: Law) -> mx.array:
    """Probabilities (..., V) float32 of scores (..., V) of any float type, for a law that is not greedy."""
    scaled = scores.astype(mx.float32) / law.temperature
    probs = mx.softmax(scaled, axis=-1, precise=True)
    return _truncated(scaled, probs, law) if law.cuts else probs


def _truncated(scores: mx.array, probs: mx.array, law: Law) -> mx.array:
    """The law after top-k, then top-p over what that leaves, and min-p; the likeliest token stays in any case."""
    ids = best(scores, law.top_k or scores.shape[-1])
    chance = mx.take_along_axis(probs, ids, axis=-1)  # likeliest first
    sums = mx.cumsum(chance, axis=-1)
    total = sums[..., -1:] if law.top_k else 1.0
    keep = chance >= law.min_p * chance[..., :1]
    if law.top_p < 1:
        keep = keep & (sums - chance < law.top_p * total)
    keep = keep | (mx.arange(chance.shape[-1]) == 0)
    kept = mx.where(keep, chance, 0.0)
    kept = kept / kept.sum(axis=-1, keepdims=True)
    return mx.put_along_axis(mx.zeros_like(probs), ids, kept, axis=-1)


def best(scores: mx.array, count: int) -> mx.array:
    """Ids of the `count` best of scores (..., V), best first: (..., min(count, V))."""
    if count >= scores.shape[-1]:
        return mx.argsort(-scores, axis=-1)
    ids = mx.argpartition(-scores, count - 1, axis=-1)[..., :count]
    order = mx.argsort(-mx.take_along_axis(scores, ids, axis=-1), axis=-1)
    return mx.take_along_axis(ids, order, axis=-1)


def draw(weights: mx.array, uniforms: mx.array) -> mx.array:
    """Draw an id from each row by inverse CDF; an id of weight 0 is never drawn.

    Args:
        weights: (..., V), non-negative, not all 0 in a row; need not sum to 1.
        uniforms: (...) in [0, 1).

    Returns:
        ids (...).
    """
    size = weights.shape[-1]
    if size <= STRETCH:
        sums = mx.cumsum(weights, axis=-1)
        return _first_beyond(weights, sums, uniforms * sums[..., -1])
    stretches = mx.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(0, -size % STRETCH)])
    stretches = stretches.reshape(*weights.shape[:-1], -1, STRETCH)
    totals = stretches.sum(axis=-1)
    sums = mx.cumsum(totals, axis=-1)
    mark = uniforms * sums[..., -1]
    which = _first_beyond(totals, sums, mark)
    before = mx.where(which > 0, _at(sums, mx.maximum(which - 1, 0)), 0.0)
    inside = mx.take_along_axis(stretches, which[..., None, None], axis=-2).squeeze(-2)
    return which * STRETCH + _first_beyond(inside, mx.cumsum(inside, axis=-1), mark - before)


def _first_beyond(weights: mx.array, sums: mx.array, mark: mx.array) -> mx.array:
    """The first index with weight whose running sum exceeds the mark; by rounding there may be none: the last one."""
    beyond = (sums > mark[..., None]) & (weights > 0)
    last = mx.argmax(mx.where(weights > 0, mx.arange(weights.shape[-1]), -1), axis=-1)
    return mx.where(beyond.any(axis=-1), mx.argmax(beyond, axis=-1), last).astype(mx.int32)


def _at(values: mx.array, index: mx.array) -> mx.array:
    """values[..., index] of each row."""
    return mx.take_along_axis(values, index[..., None], axis=-1).squeeze(-1)
