"""What a drafter proposes here, and what it must be able to do: `drafter/proposal.py` for one request.

One rule: a proposal carries the exact law that each candidate was drawn from, and nothing of it leaves the device.
Source: DSpine (arXiv 2609.36173), predecessor-conditioned decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from dspine.serve.mlx.backbone import Context
from dspine.serve.mlx.law import Law


@dataclass(frozen=True)
class Proposal:
    """Candidates of places 1..M with their law q.

    tokens: (M,) int32.
    support: (M, K), the ids that `probs` speaks of; None: all of the vocabulary.
    probs: float32 (M, K) or (M, V); None: q is one-hot at `tokens`.
    confidence: (M,) estimated chance of acceptance, which does not depend on the token at its own place; or None.
    """

    tokens: mx.array
    support: mx.array | None = None
    probs: mx.array | None = None
    confidence: mx.array | None = None

    @property
    def candidates(self) -> int:
        return int(self.tokens.shape[0])

    def predecessors(self, anchor: mx.array) -> mx.array:
        """The token before each place (M,): the anchor (1,) at first, then the candidates."""
        return mx.concatenate([anchor, self.tokens[:-1]])

    def places(self, width: int) -> Proposal:
        """The first `width` places."""
        if width == self.candidates:
            return self
        fields = (self.tokens, self.support, self.probs, self.confidence)
        return Proposal(*(None if field is None else field[:width] for field in fields))


NOTHING = Proposal(mx.zeros((0,), dtype=mx.int32))


class MlxDrafter(Protocol):
    """A network that keeps a context cache and proposes."""

    @property
    def candidates(self) -> int:
        """Candidates of a round: M."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads, in the order of concatenation."""

    @property
    def max_positions(self) -> int:
        """Number of positions that it was built for."""

    @property
    def confident(self) -> bool:
        """Whether its proposals carry confidences."""

    def new_context(self) -> Context:
        """An empty context cache."""

    def observe(self, context: Context, features: mx.array) -> None:
        """Take in target features (1, T, m·d), strictly before the next anchor."""

    def propose(self, context: Context, anchor: mx.array, law: Law, uniforms: mx.array | None) -> Proposal:
        """Draft the block whose anchor (1,) lies at the context's length; `uniforms` (M,) in [0, 1), None if greedy."""

    def quantise(self, bits: int) -> None:
        """Keep the weights of the draft layers in 4 or 8 bits."""
