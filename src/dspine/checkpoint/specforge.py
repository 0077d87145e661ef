"""SpecForge's layout: the codes of the whole vocabulary lie in the file.

One rule: codes are taken as they are stored, in bfloat16 or float32; mean and basis are not in such a file and are
not guessed. Source: the SpecForge layout of DSpine (arXiv 2609.36173) drafters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dspine.checkpoint.layout import Layout
from dspine.checkpoint.schema import READY, Shapes
from dspine.drafter.config import DSpineConfig
from dspine.drafter.transfer import TransferSpace
from dspine.errors import CheckpointError

CODES = "transfer_codes"
_ROUNDING = 0.02  # of a unit norm stored in bfloat16


def codes_shape(config: DSpineConfig) -> Shapes:
    return {CODES: (config.vocab_size, config.transfer_rank)}


def _shapes(config: DSpineConfig) -> Shapes:
    return {**codes_shape(config), READY: ()}


def space_of_codes(tensors: Mapping[str, Tensor], head: Tensor) -> TransferSpace:
    """The transfer space of stored codes (V, r).

    Mean and basis become NaN: they are unknown, and whatever would use them shows it.

    Raises:
        CheckpointError: rows that are neither zero (vocabulary padding) nor of unit norm.
    """
    codes = tensors[CODES].to(device=head.device, dtype=torch.float32)
    norms = codes.norm(dim=1)
    wrong = int(((norms != 0) & ((norms - 1).abs() > _ROUNDING)).sum())
    if wrong:
        raise CheckpointError(
            f"{CODES}: {wrong} of {len(norms)} rows do not have unit norm",
            "The codes are damaged or scaled: fetch the checkpoint again.",
        )
    width = head.shape[1]
    unknown = codes.new_full((1 + codes.shape[1], width), math.nan)
    return TransferSpace(mean=unknown[0], basis=unknown[1:], codes=codes)


def basis_is_known(space: TransferSpace) -> bool:
    """Whether the space was made from a head, or read from a file that has no basis."""
    return not bool(space.basis.isnan().any())


def transfer_tensors(space: TransferSpace) -> dict[str, Tensor]:
    """What the layout stores of a transfer space: all its codes, float32."""
    return {CODES: space.codes, READY: torch.tensor(True)}


SPECFORGE = Layout(name="SpecForge", transfer=_shapes, space=space_of_codes)
