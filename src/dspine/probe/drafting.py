"""Drafting from features of our choosing: which layer reads which encoding of the context, and which anchor.

One rule: candidates are the drafter's own, by the very `propose` that decoding calls, so that a probe measures what a
round would get. Only what lies in the context cache is ours. Source: DSpine (arXiv 2609.36173), timing and predecessor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.probe.subject import Probed


class Contexts:
    """The contexts of B rows, from which blocks are drafted, greedily and as often as is asked.

    Args:
        sources: encodings of the contexts, (B, S, m·d) each.
        lengths: of each row's context; its anchor lies there.
    """

    @torch.no_grad()
    def __init__(self, drafter: Probed, sources: Sequence[Tensor], lengths: Sequence[int]) -> None:
        self._drafter = drafter
        self._span = Span(0, (0,) * len(lengths), sources[0].shape[1])
        positions = self._span.positions(sources[0].device)
        self._encoded = [drafter.backbone.context(source.to(drafter.dtype), positions) for source in sources]
        self._cache = AnchorCache(drafter, len(lengths))
        self._lengths = lengths
        self.read([0] * self._cache.layers)

    def read(self, schedule: Sequence[int]) -> None:
        """Say which source each layer reads; at first it is the first one."""
        self._cache.use = None
        self._cache.open(self._span)
        for layer, source in enumerate(schedule):
            self._cache.write(layer, *self._encoded[source][layer])
        for row, length in enumerate(self._lengths):
            self._cache.commit(row, length)

    def draft(self, anchors: Tensor) -> Tensor:
        """Candidates (B, M) behind anchors (B,)."""
        self._cache.use = frozenset()
        return self._proposed(anchors)

    def draft_with(self, anchors: Tensor, layers: Collection[int]) -> Tensor:
        """The same, while some layers attend to the keys and values of the anchors that `draft` last had.

        Args:
            layers: from 0.
        """
        self._cache.use = frozenset(layers)
        self._cache.keeping = False
        try:
            return self._proposed(anchors)
        finally:
            self._cache.keeping = True

    @torch.no_grad()
    def _proposed(self, anchors: Tensor) -> Tensor:
        law = Law.greedy_rows(len(anchors), anchors.device)
        return self._drafter.propose(self._cache, 0, anchors, law, None).tokens


class AnchorCache(RowCache):
    """A context cache that keeps what the anchors of a block wrote, for another block to attend to.

    use: the layers in which row 0 of a block has the keys and values that were kept; None: it is no block that is
        written. keeping: whether those of the present block are kept.
    """

    def __init__(self, drafter: Probed, rows: int) -> None:
        norm = drafter.backbone.norm.weight
        super().__init__(len(drafter.backbone.layers), rows, dtype=norm.dtype, device=norm.device)
        self.use: frozenset[int] | None = None
        self.keeping = True
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.use is not None and self.keeping:
            self._kept[layer] = keys[:, :, :1].clone(), values[:, :, :1].clone()
        elif self.use is not None and layer in self.use:
            own_keys, own_values = self._kept[layer]
            keys, values = torch.cat((own_keys, keys[:, :, 1:]), 2), torch.cat((own_values, values[:, :, 1:]), 2)
        return super().write(layer, keys, values)
