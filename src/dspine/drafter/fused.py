"""DSpine's draft through kernels that make a write and the norm behind it in one pass.

One rule: the same network, by the same names; only who multiplies differs. It serves the design as the paper has it:
every place hears its neighbour's prediction, gated, from no farther away. Variants of it run as they are defined.
Source: DSpine (arXiv 2609.36173), section on kernels.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from dspine.drafter.backbone import Backbone, DraftLayer, RMSNorm
from dspine.drafter.config import DSpineConfig
from dspine.drafter.injection import Injection
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import predecessors
from dspine.kernels.arithmetic import Kernels
from dspine.kernels.layer import Attend
from dspine.stages import stage


class Spine(Protocol):
    """What is asked of a network here; `DSpine` has it, and says what each part is."""

    @property
    def config(self) -> DSpineConfig: ...
    @property
    def backbone(self) -> Backbone: ...
    @property
    def injection(self) -> Injection: ...
    @property
    def tables(self) -> TargetTables: ...
    @property
    def codes(self) -> Tensor: ...
    @property
    def dtype(self) -> torch.dtype: ...


def fusable(config: DSpineConfig) -> bool:
    """Whether a network of these sizes is of the design that the kernels are made for."""
    return config.predecessor == "prediction" and config.reach == 1 and config.gated


def fused_pass(
    network: Spine, kernels: Kernels, tokens: Tensor, positions: Tensor, attend: Attend
) -> tuple[Tensor, Tensor]:
    """All layers over one block a row, as `DSpine._states` runs them.

    Args:
        tokens, positions: (B, M+1). attend: where keys and values go.

    Returns:
        hidden and last (B, M, d), see `BlockStates`.
    """
    injection, backbone = network.injection, network.backbone
    x = network.tables.embedding(tokens).to(network.dtype)
    rotary = backbone.rotary(positions, x.dtype)
    anchors = network.codes[tokens[:, 0]]  # (B, r)
    normed: Tensor | None = None  # what the next layer, or the head, reads of x, where a write has left it behind
    last = x
    for index in range(len(backbone.layers)):
        with stage("draft/backbone"):
            x = backbone.layer(index, x, rotary, attend, normed)
        last, normed = x[:, 1:], None
        if index in network.config.injected:
            with stage("draft/injection"):
                said = injection.readouts[index](last)
                message = kernels.neighbour_message(said, anchors, injection.message_weights())
                norm = _norm_behind(network, index)
                x, normed = kernels.write_and_norm(x, injection.writes[index](message), norm.weight, norm.eps)
    hidden = backbone.norm(x) if normed is None else normed
    return hidden[:, 1:], last


def fused_scores(network: Spine, kernels: Kernels, last: Tensor, anchors: Tensor, candidates: Tensor) -> Tensor:
    """The transition cache, as `DSpine.transition_cache` makes it; one product for the writes of all predecessors."""
    injection, layer = network.injection, len(network.backbone.layers) - 1
    said = injection.readouts[layer](last)
    before = predecessors(anchors, candidates)
    message = kernels.candidate_message(said, network.codes, before, injection.message_weights())
    norm = network.backbone.norm
    return kernels.refined_scores(
        last, injection.writes[layer](message), norm.weight, norm.eps, network.tables.head, candidates
    )


def _norm_behind(network: Spine, layer: int) -> RMSNorm:
    """The norm that reads what a layer's write leaves: the next layer's, or the final one."""
    layers = network.backbone.layers
    last = layer == len(layers) - 1
    return network.backbone.norm if last else cast(DraftLayer, layers[layer + 1]).input_layernorm
