"""What a drafter proposes, and what it must be able to do.

One rule: a proposal carries the exact law that each candidate was drawn from; the verifier never guesses q.
Source: DSpine (arXiv 2609.36173), predecessor-conditioned decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from dspine.kernels.arithmetic import Kernels
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.upload import upload


@dataclass(frozen=True)
class Proposal:
    """Candidates of a round, place 1..M of each row, with their law q.

    tokens: (B, M) int64 token ids.
    support: (B, M, K) int64, the ids that `probs` speaks of, distinct within a place; None: all of the vocabulary.
    probs: float32 (B, M, K) or (B, M, V); None: q is one-hot at `tokens` (greedy drafts).
    confidence: (B, M) estimated chance of acceptance, which does not depend on the token at its own place; or None.
    """

    tokens: Tensor
    support: Tensor | None = None
    probs: Tensor | None = None
    confidence: Tensor | None = None

    @property
    def candidates(self) -> int:
        return self.tokens.shape[1]

    def predecessors(self, anchors: Tensor) -> Tensor:
        """The token before each place (B, M): the anchor (B,) at first, then the candidates."""
        return torch.cat((anchors[:, None], self.tokens[:, :-1]), dim=1)

    def rows(self, index: list[int]) -> Proposal:
        """The proposals of some rows, in the order of `index`."""
        return self._map(lambda field: field[index])

    def places(self, width: int) -> Proposal:
        """The first `width` places of every row."""
        return self if width == self.candidates else self._map(lambda field: field[:, :width])

    def given(self, candidates: Sequence[Sequence[int]]) -> Proposal:
        """The proposal in which some rows have other candidates, each with a one-hot law, and no confidences.

        Args:
            candidates: by row, of some row at least; none: the row keeps its own.

        Returns:
            as many places as the longest row has. What lies behind a row's own candidates is not to be looked at.
        """
        drafted = self.candidates
        width = max(drafted, *map(len, candidates))
        rows = [index for index, tokens in enumerate(candidates) if tokens]
        filled = [[*candidates[row], *[0] * (width - len(candidates[row]))] for row in rows]
        others = upload(torch.tensor(filled), self.tokens.device)  # (R, W)
        tokens = F.pad(self.tokens, (0, width - drafted))  # (B, W)
        tokens[rows] = others
        if self.probs is None:
            return Proposal(tokens)
        probs = F.pad(self.probs, (0, 0, 0, width - drafted))  # (B, W, K or V)
        support, certain = self.support, others
        if support is not None:
            support = F.pad(support, (0, 0, 0, width - drafted))
            support[rows], certain = _beside(others, support.shape[-1]), torch.zeros_like(others)
        probs[rows] = F.one_hot(certain, probs.shape[-1]).to(probs.dtype)
        return Proposal(tokens, support, probs)

    def held(self) -> tuple[tuple[str, ...], list[Tensor]]:
        """The names of the fields that are not None, and the fields."""
        names = tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)
        return names, [getattr(self, name) for name in names]

    def _map(self, pick: Callable[[Tensor], Tensor]) -> Proposal:
        every = (self.tokens, self.support, self.probs, self.confidence)
        tokens, *others = (None if field is None else pick(field) for field in every)
        assert tokens is not None
        return Proposal(tokens, *others)


def _beside(tokens: Tensor, count: int) -> Tensor:
    """`count` different ids (..., count) at each place, its token first; of a vocabulary of twice as many at least."""
    steps = torch.arange(count, device=tokens.device)
    return torch.where(tokens[..., None] >= count, tokens[..., None] - steps, tokens[..., None] + steps)


@runtime_checkable
class Fusable(Protocol):
    """A drafter whose arithmetic can be chosen."""

    kernels: Kernels


class Drafter(Protocol):
    """A network that keeps a context cache and proposes. It knows nothing of engines, tokenizers or files."""

    @property
    def block_size(self) -> int:
        """Positions of a block, anchor included: M + 1."""

    @property
    def candidates(self) -> int:
        """Candidates of a round: M."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads, in the order of concatenation."""

    @property
    def max_positions(self) -> int:
        """Number of positions that it was built for; a row whose block would end beyond is not drafted."""

    @property
    def confident(self) -> bool:
        """Whether its proposals carry confidences."""

    def new_cache(self, rows: int) -> RowCache:
        """An empty context cache for `rows` rows."""

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        """Take in target features, strictly before the next anchor.

        Args:
            cache: context cache.
            span: slots of the features; a row's first lies at its present context length.
            features: (B, T, m·d), the tapped layers concatenated in the order of `target_layer_ids`.
            counts: how many of the T features of each row are real; the cache's lengths become starts + counts.
            tokens: (B, T) int64, the token at each slot. A drafter that pairs a feature with the token behind it keeps
                the newest feature until that token is observed, or is the anchor.
        """

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        """Draft one block a row.

        Args:
            cache: context cache; the anchor of row b sits at position `cache.lengths[first + b]`.
            first: the cache row of the first anchor.
            anchors: (B,) int64, the newest committed token of each row.
            law: sampling parameters of the rows; place, not history, is all they may depend on.
            uniforms: float32 (B, M) in [0, 1), one a place; may be None when every row is greedy.
        """


@runtime_checkable
class Recordable(Drafter, Protocol):
    """A drafter whose work on a device needs no number of the host but shapes, so that it can be recorded."""

    @property
    def draft_width(self) -> int:
        """Slots a row that a draft is written to."""

    def propose_at(
        self, cache: RowCache, span: Span | DeviceSpan, anchors: Tensor, law: Law, uniforms: Tensor | None
    ) -> Proposal:
        """`propose` at a span of `draft_width`, which lies behind the rows' contexts."""

    def take_in(self, cache: RowCache, span: Span | DeviceSpan, features: Tensor, tokens: Tensor) -> None:
        """`observe` of all features of a span, of which nothing is committed."""
