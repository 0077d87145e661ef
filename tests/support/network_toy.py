"""The Markov toy (F3) with a real drafter network in place of its table: is the law it reports the one it drew from?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tests.support.markov import TOKENS, MarkovToy
from torch import Tensor

from dspine.decode.sampling import SamplingParams, law_of
from dspine.drafter.proposal import Proposal
from dspine.drafter.registry import Network
from dspine.kernels.kv import Span

ROWS = 2000  # drafted at once: bounds the cache
SEEN = 3  # features before every anchor, which follow from it alone


@dataclass(frozen=True)
class NetworkToy(MarkovToy):
    """`drafter` proposes for the chain; its draft vocabulary is the chain's tokens."""

    drafter: Network | None = None
    params: SamplingParams | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, drafter: Network, params: SamplingParams) -> NetworkToy:
        """`drafter` is flattened, so that its law and the chain's overlap."""
        final = dict(drafter.named_parameters())
        final.get("norm.weight", final.get("backbone.norm.weight")).mul_(0.15)
        plain = MarkovToy.under(params)
        return cls(plain.p, plain.support, plain.q, plain.drawn, drafter=drafter, params=params)

    @torch.no_grad()
    def propose(self, anchors: Tensor, noise: Tensor) -> Proposal:
        every = [self._part(*part) for part in zip(anchors.split(ROWS), noise.split(ROWS), strict=True)]
        columns = zip(*((part.tokens, part.support, part.probs) for part in every), strict=True)
        return Proposal(*(None if column[0] is None else torch.cat(column) for column in columns))

    def _part(self, anchors: Tensor, noise: Tensor) -> Proposal:
        drafter, rows = self.drafter, len(anchors)
        generator = torch.Generator().manual_seed(7)
        table = torch.randn(TOKENS, SEEN, drafter.config.feature_size, generator=generator, dtype=drafter.dtype)
        cache = drafter.new_cache(rows)
        tokens = anchors[:, None].expand(-1, SEEN)
        drafter.observe(cache, Span(0, (0,) * rows, SEEN), table[anchors], (SEEN,) * rows, tokens)
        return drafter.propose(cache, 0, anchors, law_of([self.params] * rows), noise)
