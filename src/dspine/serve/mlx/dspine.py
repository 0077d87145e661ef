"""The DSpine drafter in MLX: `drafter/dspine.py` for one request.

One rule: between the anchor and the proposal nothing waits for the device: candidates, scores of all successors of all
predecessors, and the walk through them are one graph. Source: DSpine (arXiv 2609.36173), sections on the backbone,
injection, and predecessor-conditioned decoding.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx

from dspine.drafter.config import DSpineConfig
from dspine.drafter.masks import CAUSAL, Sight
from dspine.serve.mlx.backbone import Context
from dspine.serve.mlx.law import Law, draw, law_probs
from dspine.serve.mlx.network import Network
from dspine.serve.mlx.proposal import Proposal
from dspine.serve.mlx.tables import Tables


class DSpineDrafter:
    """A drafter for one target.

    Args:
        network: with its trained weights.
        codes: C (V, r) float32.
    """

    def __init__(self, config: DSpineConfig, network: Network, tables: Tables, codes: mx.array) -> None:
        self.config = config
        self._network = network
        self._tables = tables
        self._codes = codes
        sight = CAUSAL if config.is_causal else Sight(causal=False)
        self._sights = (sight,) * config.num_hidden_layers
        self._walk_through = mx.compile(_walk_through)
        self._follow = mx.compile(_follow)

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
        hidden, last, farther = self.draft_block(context, anchor)
        if not self.config.refined:
            proposal = self._tables.independent(hidden, law, uniforms)
        else:
            candidates = self._tables.top(hidden, self.config.top_k)  # (M, K)
            scores = self.transition_cache(last, anchor, candidates, farther)
            proposal = self._walked(scores, candidates, law, uniforms)
        if not self.confident:
            return proposal
        state = self._refine(last, proposal.predecessors(anchor), farther) if self.config.refined else hidden
        return replace(proposal, confidence=self._network.confidence_head(state))

    def draft_block(self, context: Context, anchor: mx.array) -> tuple[mx.array, mx.array, mx.array | None]:
        """One pass over the block of an anchor (1,).

        Returns:
            the ordinary output (M, d), final-normed; u_L (M, d), the last layer before its injection; and what that
            layer hears from farther away than the predecessor (M, a), None where the reach is 1.
        """
        code = self._codes[anchor]  # (1, r)
        last: mx.array = None
        farther: mx.array | None = None

        def hear(layer: int, x: mx.array) -> mx.array:
            nonlocal last, farther
            last = x[0, 1:]
            heard, farther = self._hear(layer, last, code)
            return mx.concatenate([x[:, :1], heard[None]], axis=1)

        masks = mx.full((self.candidates,), self.config.mask_token_id, dtype=mx.int32)
        tokens = mx.concatenate([anchor, masks])
        x = self._network.backbone.block(context, self._tables.embed(tokens)[None], self._sights, hear)
        return self._network.backbone.norm(x[0, 1:]), last, farther

    def transition_cache(
        self, last: mx.array, anchor: mx.array, candidates: mx.array, farther: mx.array | None
    ) -> mx.array:
        """T (M, K, K): the refined score at place t of candidate j, had predecessor i been chosen.

        Args:
            last: u_L (M, d). candidates: V_t (M, K). farther: (M, a) or None, see `draft_block`.
        """
        known = mx.broadcast_to(anchor, (1, candidates.shape[1]))
        predecessors = mx.concatenate([known, candidates[:-1]])  # (M, K)
        beyond = None if farther is None else farther[:, None]
        refined = self._refine(last[:, None], predecessors, beyond)  # (M, K, d)
        return refined @ self._tables.rows(candidates).astype(refined.dtype).transpose(0, 2, 1)

    def _refine(self, last: mx.array, predecessors: mx.array, farther: mx.array | None) -> mx.array:
        """Last-write refinement: the last injection redone with tokens (...) that are known, then the final norm."""
        layer = self.config.num_hidden_layers - 1
        receiver = self._network.injection.readout(layer, last)
        code = self._codes[predecessors]
        return self._network.backbone.norm(self._network.injection.deliver(layer, last, receiver, code, farther))

    def _hear(self, layer: int, state: mx.array, code: mx.array) -> tuple[mx.array, mx.array | None]:
        """One layer's injection in the parallel pass: u (M, d), the anchor's code (1, r) → h, and what is from afar."""
        if layer not in self.config.injected:
            return state, None
        injection = self._network.injection
        receiver = injection.readout(layer, state)
        if self.config.predecessor == "none":
            first = injection.deliver(layer, state[:1], receiver[:1], code, None)
            return mx.concatenate([first, state[1:]]), None
        senders = mx.concatenate([code, receiver[:-1]])
        farther = None if self.config.reach == 1 else injection.from_farther(senders, state.dtype)
        return injection.deliver(layer, state, receiver, senders, farther), farther

    def _walked(self, scores: mx.array, candidates: mx.array, law: Law, uniforms: mx.array | None) -> Proposal:
        if law.greedy:
            return Proposal(self._walk_through(mx.argmax(scores, axis=-1), candidates))
        assert uniforms is not None
        probs = law_probs(scores, law)  # all rows at once, so that the walk is lookup alone
        return Proposal(*self._follow(probs, draw(probs, uniforms[:, None]), candidates))


def _walk_through(successors: mx.array, candidates: mx.array) -> mx.array:
    """Tokens (M,) of the walk through (M, K): at place t, after predecessor i, comes candidate successors[t, i]."""
    return mx.take_along_axis(candidates, _steps(successors)[:, None], axis=1).squeeze(1)


def _follow(probs: mx.array, successors: mx.array, candidates: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Tokens (M,), support and laws (M, K) of a walk whose draws were made for every predecessor."""
    chosen = _steps(successors)
    before = mx.concatenate([mx.zeros((1,), dtype=chosen.dtype), chosen[:-1]])
    laws = mx.take_along_axis(probs, before[:, None, None], axis=1).squeeze(1)
    return mx.take_along_axis(candidates, chosen[:, None], axis=1).squeeze(1), candidates, laws


def _steps(successors: mx.array) -> mx.array:
    """Which candidate is chosen at each place (M,); at place 1 every predecessor is the anchor."""
    index = mx.array(0, dtype=mx.int32)
    chosen = []
    for place in range(successors.shape[0]):
        index = mx.take(successors[place], index).astype(mx.int32)
        chosen.append(index)
    return mx.stack(chosen)
