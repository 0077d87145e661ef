"""The states of a drafter's layers over blocks, and what may be exchanged in them on the way.

One rule: nothing is run but the drafter's own pass over blocks; a probe listens at its layers. h_l is what layer l
hands on: its output, and in DSpine what the injection made of it. Source: DSpine (arXiv 2609.36173), readout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dspine.drafter.dspine import DSpine
from dspine.probe.subject import Probed

# (layer from 0, what a module gave) → what is handed on in its place
Change = Callable[[int, Tensor], Tensor]


@torch.no_grad()
def layer_states(drafter: Probed, features: Tensor, anchors: Tensor, tokens: Tensor) -> tuple[list[Tensor], Tensor]:
    """h_l of every layer, and the final-normed ordinary output, over the blocks of one sequence.

    Args:
        features: (S, m·d). anchors: (A,) positions. tokens: (A, M+1) of the blocks.

    Returns:
        L of (A, M, d), and (A, M, d): the rows that predict places 1..M.
    """
    if isinstance(drafter, DSpine):
        states = drafter.blocks(features[None], _length(features), anchors[None], tokens[None])
        return [heard[0] for heard in states.heard], states.hidden[0]
    with outputs(drafter) as seen:
        hidden = drafter.blocks(features[None], _length(features), anchors[None], tokens[None])
    rows = drafter.form.rows
    return [state.reshape(len(anchors), rows, -1)[:, drafter.config.logits_start :] for state in seen], hidden[0]


@contextmanager
def outputs(drafter: Probed) -> Iterator[list[Tensor]]:
    """The outputs of the layers, in the order that they come, while this is open."""
    seen: list[Tensor] = []

    def keep(_: int, out: Tensor) -> Tensor:
        seen.append(out)
        return out

    with changing(list(drafter.backbone.layers), keep):
        yield seen


@contextmanager
def changing(modules: list[nn.Module], change: Change) -> Iterator[None]:
    """What modules give passes through `change`, while this is open."""

    def hook(layer: int) -> Any:
        return lambda module, given, out: change(layer, out)

    with ExitStack() as stack:
        for layer, module in enumerate(modules):
            stack.callback(module.register_forward_hook(hook(layer)).remove)
        yield


def blocks_of(ids: list[int], anchors: list[int], candidates: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Anchors (A,) and the tokens (A, M+1) of their blocks."""
    at = torch.tensor(anchors, device=device)
    return at, torch.tensor([ids[anchor : anchor + candidates + 1] for anchor in anchors], device=device)


def _length(features: Tensor) -> Tensor:
    return torch.tensor([len(features)], device=features.device)
