"""What changes over a run: learning rate, alignment strength β, and correct-predecessor replacement.

One rule: pure functions of the step (0-based) and the run's length; nothing here has state, so resuming at
a step is enough to resume the schedule. Source: DSpine (arXiv 2609.36173), training setup: 4 % linear
warm-up then cosine to 0; β from 0 to 0.5 over the same warm-up; replacement p = 0.5 to 1/6, linear to 0 at 1/3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dspine.config import ObjectiveRecipe
from dspine.drafter.config import DSpineConfig
from dspine.errors import ConfigError
from dspine.train.blocks import keyed_random


def warmup_steps(total: int, ratio: float) -> int:
    """Steps of linear warm-up: `ratio` of the run, rounded down (4 % of the paper's 3655 steps: 146)."""
    return math.floor(total * ratio)


def learning_rate(step: int, *, peak: float, total: int, warmup: int) -> float:
    """Linear from peak/warmup at step 0 to `peak`, then a half cosine that ends at 0 after the last step."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def alignment_weight(step: int, *, peak: float, warmup: int) -> float:
    """β: linear from 0 at step 0 to `peak` at step `warmup`, then constant."""
    return peak if step >= warmup else peak * step / warmup


def replacement_probability(
    step: int, *, total: int, probability: float = 0.5, hold: float = 1 / 6, end: float = 1 / 3
) -> float:
    """p held until the fraction `hold` of the run, then linear to 0 at the fraction `end`."""
    progress = step / total
    if progress < hold:
        return probability
    if progress >= end:
        return 0.0
    return probability * (end - progress) / (end - hold)


def replaced_layers(layers: int) -> int:
    """How many of L draft layers hear correct predecessors in a replaced block: 3 of 5, never all."""
    return min(round(0.6 * layers), layers - 1)


def replacement_layers(goal: ObjectiveRecipe, drafter: DSpineConfig) -> int:
    """How many draft layers, from the first, hear correct predecessors in a replaced block.

    Raises:
        ConfigError: there is nothing to replace, or the correct tokens would reach the places that are to predict them.
    """
    if goal.replacement == "never":
        return 0
    layers, never = drafter.num_hidden_layers, "Set objective.replacement to never."
    default = layers if goal.replacement == "always" else replaced_layers(layers)
    count = default if goal.replacement_layers is None else goal.replacement_layers
    if count == 0:  # a single layer, which the curriculum leaves alone
        return 0
    if not drafter.is_causal:
        what = "drafter.is_causal is false: a correct predecessor would reach the place that is to predict it"
        raise ConfigError(what, never)
    if count > layers:
        raise ConfigError(f"objective.replacement_layers is {count}, of {layers} draft layers", "Give fewer.")
    if drafter.predecessor == "none" or not any(layer < count for layer in drafter.injected):
        raise ConfigError(
            f"objective.replacement is {goal.replacement}, and none of the first {count} layers hears predecessors",
            never,
        )
    return count


def draw_replaced(
    counts: Sequence[int], probability: float, *, seed: int, epoch: int, samples: Sequence[str]
) -> Tensor:
    """One Bernoulli(`probability`) draw a block: do its shallow layers hear the correct predecessors?

    Keyed by (seed, epoch, sample), so it does not depend on the batch.

    Args:
        counts: blocks of each sample.

    Returns:
        (N, A) bool, A the largest count (at least 1), False in the padding.
    """
    replaced = torch.zeros(len(counts), max(1, *counts), dtype=torch.bool)
    for row, (count, sample) in enumerate(zip(counts, samples, strict=True)):
        uniforms = keyed_random("replacement", seed, epoch, sample).random(count)
        replaced[row, :count] = torch.from_numpy(uniforms < probability)
    return replaced
