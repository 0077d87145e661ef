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
    """Weighted sums of an objective's terms and their denominators, in the order of its `names`; both (k,) tensors."""

    sums: Tensor
    denominators: Tensor

    @staticmethod
    def total(parts: Sequence[Terms]) -> Terms:
        """The terms of a whole window, without gradient: what an all-reduce over processes would also add up."""
        sums = torch.stack([part.sums.detach() for part in parts]).sum(0)
        return Terms(sums, torch.stack([part.denominators for part in parts]).sum(0))

    def means(self) -> Tensor:
        """(k,) means; a term without valid rows is 0."""
        return normalise(self.sums, self.denominators)


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
