"""What training will cost: disk for features, and arithmetic.

One rule: counted from sizes, before anything is built. Floating-point operations are counted as two a weight and row; a
backward pass costs two forwards, and attention among rows, small beside the weights, is left out. So the numbers are
estimates, for choosing a machine and not for measuring one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch

from dspine.checkpoint.kinds import shapes_of
from dspine.checkpoint.schema import parameter_shapes
from dspine.config import Recipe
from dspine.drafter.config import BackboneConfig, DSpineConfig
from dspine.target.model import Target
from dspine.train.blocks import eligible_anchors
from dspine.train.responses import TrainingSequence
from dspine.train.shards import StoreSettings


@dataclass(frozen=True)
class Budget:
    """Cost of a run.

    parameters: that are trained.
    steps, epochs: of the run; epochs as a fraction where the recipe counts steps.
    tokens, blocks: of an epoch.
    store_bytes: of the features on disk; 0 where they are made online.
    target_flops: of the target's forwards that make the features, over the whole run.
    training_flops: of the drafter's forwards and backwards, over the whole run.
    """

    parameters: int
    steps: int
    epochs: float
    tokens: int
    blocks: int
    store_bytes: int
    target_flops: float
    training_flops: float


def budget(
    recipe: Recipe,
    target: Target,
    config: BackboneConfig,
    sequences: Sequence[TrainingSequence],
    settings: StoreSettings,
) -> Budget:
    """What training on these sequences will cost.

    Args:
        config: sizes of the drafter.
        sequences: those with an anchor.
        settings: of the store that would be made.
    """
    setup, online = recipe.training, recipe.features.mode == "online"
    per_epoch = max(1, ceil(len(sequences) / setup.window_samples))
    steps = setup.steps or (setup.epochs or 0) * per_epoch
    epochs = steps / per_epoch
    tokens = sum(len(s.ids) for s in sequences)
    blocks = sum(_blocks(s, setup.anchors_per_sample) for s in sequences)
    forward = _epoch_forward(recipe, config, tokens, blocks)
    split = setup.micro_batch is not None and setup.micro_batch < setup.window_samples
    vocabulary = recipe.drafter.draft_vocabulary or target.vocab_size
    taught = sum(sum(s.loss_mask[1:]) for s in sequences)
    runs = epochs if online else 1
    # Two rows of scores a place, the drafter's and the teacher's; only the drafter's hidden state takes a gradient.
    scores = 2.0 * target.hidden_size * vocabulary * blocks * config.candidates
    return Budget(
        parameters=_parameters(config, recipe.drafter.draft_vocabulary),
        steps=steps,
        epochs=epochs,
        tokens=tokens,
        blocks=blocks,
        store_bytes=0 if online else sum(map(settings.bytes_of, sequences)),
        target_flops=2.0 * runs * (_weights(target) * tokens + target.head_weight.numel() * taught),
        training_flops=epochs * ((4 if split else 3) * forward + (5 if split else 3) * scores),
    )


def _blocks(sequence: TrainingSequence, most: int) -> int:
    return min(most, len(eligible_anchors(torch.tensor(sequence.loss_mask))))


def _shapes(config: BackboneConfig, draft_vocabulary: int | None) -> dict[str, tuple[int, ...]]:
    return parameter_shapes(config) if isinstance(config, DSpineConfig) else shapes_of(config, draft_vocabulary)


def _parameters(config: BackboneConfig, draft_vocabulary: int | None) -> int:
    return sum(map(prod, _shapes(config, draft_vocabulary).values()))


def _epoch_forward(recipe: Recipe, config: BackboneConfig, tokens: int, blocks: int) -> float:
    """Operations of one forward over an epoch, without the vocabulary's."""
    shapes = _shapes(config, recipe.drafter.draft_vocabulary)
    matrices = {name: prod(shape) for name, shape in shapes.items() if len(shape) == 2}
    fusion = matrices.pop("fc.weight", 0)
    read = sum(size for name, size in matrices.items() if name.endswith(("k_proj.weight", "v_proj.weight")))
    return 2.0 * ((fusion + read) * tokens + sum(matrices.values()) * blocks * config.block_size)


def _weights(target: Target) -> int:
    """Weights of the target's layers: all matrices but the embedding and the head, which is asked at teachers alone."""
    tables = {id(p) for p in target.embedding.parameters()} | {id(target.head_weight)}
    return sum(p.numel() for p in target.model.parameters() if p.dim() == 2 and id(p) not in tables)
