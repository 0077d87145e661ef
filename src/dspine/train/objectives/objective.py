"""What the learner asks of an objective: sums and denominators of a micro-batch, and the loss of a window.

One rule: a micro-batch yields sums and denominators, never means; means are taken over the whole optimiser window (and
all processes), so a window may be split in any way. Source: DSpine (arXiv 2609.36173), training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dspine.train.blocks import Blocks
from dspine.train.sequences import SequenceBatch


@dataclass(frozen=True)
class Moment:
    """Where in the run a step is: what the schedules say there.

    beta, replacement: of DSpine's objective. progress: share of the run's steps behind it, in [0, 1).
    """

    step: int
    epoch: int
    learning_rate: float
    beta: float = 0.0
    replacement: float = 0.0
    progress: float = 0.0


@dataclass(frozen=True)
class Terms:
    """Sums over a micro-batch, of any number of which the sums add up to those of a window.

    sums, denominators: (k,) weighted sums of an objective's terms and what they are divided by, in the order of its
        `names`.
    places: (4, M) by place, unweighted and without gradient: labels; how many of them were the drafter's likeliest
        token; Σ (1 - TV(q, p)), the chance that a draw would be accepted; and over how many labels that sum is.
    """

    sums: Tensor
    denominators: Tensor
    places: Tensor

    @staticmethod
    def total(parts: Sequence[Terms]) -> Terms:
        """The terms of several micro-batches, without gradient."""
        return Terms(*(torch.stack(side).sum(0) for side in zip(*(part.detached() for part in parts), strict=True)))

    def detached(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three tensors, without gradient."""
        return self.sums.detach(), self.denominators.detach(), self.places.detach()

    def means(self) -> Tensor:
        """(k,) means; a term without valid rows is 0."""
        return normalise(self.sums, self.denominators)

    def by_place(self) -> tuple[list[float], list[float | None]]:
        """Share of labels that were the drafter's likeliest token, and mean 1 - TV (None: of no label), by place."""
        labels, matches, overlap, seen = self.places
        accepted = zip(normalise(overlap, seen).tolist(), seen.tolist(), strict=True)
        return normalise(matches, labels).tolist(), [mean if count else None for mean, count in accepted]


@torch.no_grad()
def count_places(place: Tensor, places: int, matches: Tensor, overlap: Tensor, seen: Tensor | None = None) -> Tensor:
    """Rows summed by their place, see `Terms.places`: (4, M).

    Args:
        place: (R,) int64 from 0. places: M. matches: bool (R,).
        overlap: 1 - TV of the rows that `seen`, bool (R,), holds; None: of all.
    """
    counted = torch.zeros(4, places, dtype=overlap.dtype, device=place.device)
    every = torch.ones_like(place, dtype=overlap.dtype)
    counted[:2].index_add_(1, place, torch.stack([every, matches.to(every)]))
    few = place if seen is None else place[seen]
    counted[2:].index_add_(1, few, torch.stack([overlap, every[: len(few)]]))
    return counted


def normalise(sums: Tensor, denominators: Tensor) -> Tensor:
    """sums / denominators, 0 (with zero gradient) where the denominator is 0."""
    empty = denominators <= 0
    return torch.where(empty, 0.0, sums / denominators.masked_fill(empty, 1.0))


class Objective(Protocol):
    """What a drafter is trained for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms, for the log."""

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        """Forward of a micro-batch; called a second time for the same blocks, it must draw the same."""

    def loss(self, part: Terms, window: Terms, moment: Moment) -> Tensor:
        """A micro-batch's share of the window's loss; the shares of a window add up to the loss.

        Args:
            part: terms of the micro-batch, with gradient. window: terms of the whole window: the denominators.
        """

    def schedule(self, moment: Moment) -> dict[str, float]:
        """What its schedules say at a moment, for the log."""
