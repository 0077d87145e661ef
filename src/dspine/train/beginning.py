"""How a DSpine drafter begins: its transfer space, and the readouts into it.

One rule: what is chosen here shows in the first values alone. The space is kept in the drafter's file as it came out,
and readouts are trained like everything else, so that no reader of the file has to know. Source: DSpine
(arXiv 2609.36173): a whitened space, readouts that start as P_rᵀ.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from dspine.drafter.config import DSpineConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.transfer import TransferSpace
from dspine.errors import ConfigError


def begin(
    config: DSpineConfig,
    embedding: nn.Module,
    head: Tensor,
    draft_ids: Tensor | None,
    *,
    whitening: bool = True,
    readout_init: str = "directions",
) -> DSpine:
    """An untrained drafter over a target's tables, see `DSpine`.

    Args:
        whitening: see `TransferSpace.fit`.
        readout_init: "directions", P_rᵀ; "whitened", Λ_r^{-1/2} P_rᵀ, as tokens are read; "random", like any matrix.

    Raises:
        ConfigError: readouts that start whitened in a space that is not.
    """
    if readout_init == "whitened" and not whitening:
        raise ConfigError(
            "drafter.readout_init is whitened, and drafter.whitening is false: it is the same as directions",
            "Leave readout_init out.",
        )
    space = TransferSpace.fit(head, config.transfer_rank, whitening=whitening)
    drafter = DSpine(config, embedding, head, space, draft_ids)
    for readout in drafter.injection.readouts:
        weight = cast(nn.Linear, readout).weight
        if readout_init == "whitened":
            with torch.no_grad():  # at the size of the directions: only its shape speaks, as a readout is normalised
                weight.copy_(space.basis / space.basis.norm() * weight.norm())
        elif readout_init == "random":
            nn.init.kaiming_uniform_(weight, a=5**0.5)  # as torch starts a linear layer
    return drafter
