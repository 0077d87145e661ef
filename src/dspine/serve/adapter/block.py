"""A DSpine block through an engine's own draft layers, and what its last write becomes once a predecessor is known.

One rule: attention, norms and projections are the engine's, so that they run on its caches and kernels; the injection
between its layers is ours, the very module that `drafter.dspine` is made of. Source: DSpine (arXiv 2609.36173),
adjacent causal injection and predecessor-conditioned decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dspine.drafter.injection import Injection

Layer = Callable[[Tensor], Tensor]  # (B·(M+1), d) → (B·(M+1), d), residual included


def pass_through(layers: Iterable[Layer], injection: Injection, x: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Run one block a request.

    Args:
        layers: the engine's, in order.
        x: (B·(M+1), d), the anchor's embedding at row 0 of each block, the mask token's elsewhere.
        anchors: unit codes of the anchors (B, 1, r): what place 1 hears from is a token.

    Returns:
        the last layer's state after its injection, and u_L, its state before: both (B, M, d).
    """
    width = x.shape[-1]
    rows = len(x) // len(anchors)
    state = heard = x
    for index, layer in enumerate(layers):
        blocks = layer(x).view(-1, rows, width)
        state = blocks[:, 1:]  # (B, M, d)
        receiver = injection.readout(index, state)
        before = torch.cat((anchors.to(receiver.dtype), receiver[:, :-1]), dim=1)
        heard = injection.deliver(index, state, receiver, before)
        x = torch.cat((blocks[:, :1], heard), dim=1).view(-1, width)
    return heard, state


def rewritten(injection: Injection, last: Tensor, codes: Tensor) -> Tensor:
    """The last layer's injection redone with tokens that are known.

    Args:
        last: u_L (..., d).
        codes: unit codes of the predecessors (..., r), broadcastable to last's leading dimensions.

    Returns:
        (..., d), before the final norm.
    """
    layer = len(injection.readouts) - 1
    receiver = injection.readout(layer, last)
    return injection.deliver(layer, last, receiver, codes.to(receiver.dtype))
