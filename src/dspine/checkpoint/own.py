"""Our own layout: SpecForge's keys and shapes, with the compact basis of the transfer space in place of its codes.

One rule: codes are rebuilt from the stored mean and basis and the target's head, exactly, never from a new
eigendecomposition; for SmolLM2 that is 0.6 MB instead of 50. Source: DSpine (arXiv 2609.36173), transfer space.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dspine.checkpoint.codes import space_of_basis
from dspine.checkpoint.layout import Layout
from dspine.checkpoint.schema import READY, Shapes
from dspine.drafter.config import DSpineConfig
from dspine.drafter.transfer import TransferSpace
from dspine.errors import CheckpointError

MEAN, BASIS = "transfer_mean", "transfer_basis"


def _shapes(config: DSpineConfig) -> Shapes:
    return {MEAN: (config.hidden_size,), BASIS: (config.transfer_rank, config.hidden_size), READY: ()}


def _space(tensors: Mapping[str, Tensor], head: Tensor) -> TransferSpace:
    for name in (MEAN, BASIS):
        if tensors[name].dtype != torch.float32:
            raise CheckpointError(
                f"{name} is {tensors[name].dtype}: codes rebuilt from it would not be those of the training run",
                "Take the file as dspine wrote it, with float32 mean and basis.",
            )
    return space_of_basis(head, tensors[MEAN].to(head.device), tensors[BASIS].to(head.device))


def transfer_tensors(space: TransferSpace) -> dict[str, Tensor]:
    """What the layout stores of a transfer space whose basis is known."""
    return {MEAN: space.mean, BASIS: space.basis, READY: torch.tensor(True)}


OWN = Layout(name="dspine", transfer=_shapes, space=_space)
