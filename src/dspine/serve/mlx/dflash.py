"""The DFlash drafter in MLX: the parallel backbone and the target's head, nothing else.

One rule: every place is drawn on its own, so that q is a product of the places' laws.
Source: DFlash (arXiv 2602.06036).
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx

from dspine.drafter.dflash import DFlashConfig
from dspine.serve.mlx.backbone import Context
from dspine.serve.mlx.law import Law
from dspine.serve.mlx.network import Network
from dspine.serve.mlx.proposal import Proposal
from dspine.serve.mlx.tables import Tables


class DFlashDrafter:
    """A drafter for one target.

    Args:
        network: with its trained weights.
    """

    def __init__(self, config: DFlashConfig, network: Network, tables: Tables) -> None:
        self.config = config
        self._network = network
        self._tables = tables

    @property
    def candidates(self) -> int:
        return self.config.candidates

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    @property
    def confident(self) -> bool:
        return self._network.confident

    def quantise(self, bits: int) -> None:
        self._network.quantise(bits)

    def new_context(self) -> Context:
        return Context(self.config.num_hidden_layers)

    def observe(self, context: Context, features: mx.array) -> None:
        self._network.backbone.observe(context, features)

    def propose(self, context: Context, anchor: mx.array, law: Law, uniforms: mx.array | None) -> Proposal:
        rows = self.config.block_size
        masks = mx.full((rows - 1,), self.config.mask_token_id, dtype=mx.int32)
        x = self._tables.embed(mx.concatenate([anchor, masks]))[None]
        x = self._network.backbone.block(context, x, self.config.sights)
        hidden = self._network.backbone.norm(x[0, self.config.logits_start :])  # (M, d)
        proposal = self._tables.independent(hidden, law, uniforms)
        if not self.confident:
            return proposal
        before = self._tables.embed(proposal.predecessors(anchor)).astype(hidden.dtype)
        read = mx.concatenate([hidden, mx.fast.rms_norm(before, None, 1e-6)], axis=-1)
        return replace(proposal, confidence=self._network.confidence_head(read))
