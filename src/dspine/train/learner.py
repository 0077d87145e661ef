"""One optimiser step: from the sequences of a window to the gradient, guarded, and to new weights.

One rule: the gradient of a window does not depend on how the window is split into micro-batches. Where it is
split, a pass without gradient first collects the window's sums and denominators; anchors and draws are
keyed by seed and sample (anchors by epoch, draws by step), so the second pass sees the same blocks.
Source: DSpine (arXiv 2609.36173), training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspine.drafter.registry import Network
from dspine.train.blocks import Blocks, cut_blocks, draw_anchors
from dspine.train.objectives.objective import Moment, Objective, Terms
from dspine.train.sequences import SequenceBatch

WIDTH = 64  # positions of a batch are a multiple of it


@dataclass(frozen=True)
class StepReport:
    """What one step did. `bad` names the suspect samples when nothing was finite and the weights stayed."""

    loss: float
    means: dict[str, float]
    gradient_norm: float
    blocks: int
    tokens: int
    bad: tuple[str, ...] = ()


class Learner:
    """A drafter, its optimiser and its objective.

    Args:
        drafter: float32 (or float64) weights; trained in place.
        objective: what it is trained for.
        clip: largest norm of the gradient.
        anchors_per_sample: blocks drawn of a sequence, at most.
        precision: of the matrix products; bfloat16 means autocast, weights and losses stay as they are.
        seed: of anchors.
    """

    def __init__(
        self,
        drafter: Network,
        objective: Objective,
        *,
        clip: float,
        anchors_per_sample: int,
        precision: torch.dtype,
        seed: int,
    ) -> None:
        self.drafter = drafter
        self.objective = objective
        self.clip = clip
        self.anchors_per_sample = anchors_per_sample
        self.precision = precision
        self.seed = seed
        self.optimizer = torch.optim.AdamW(drafter.parameters(), lr=0.0, weight_decay=0.0, fused=True)

    def step(self, parts: Sequence[SequenceBatch], moment: Moment) -> StepReport:
        """Move the weights by one window; where its loss or gradient is not finite they stay, bit for bit."""
        report = self.gradients([widened(part) for part in parts], moment)
        if not report.bad:
            for group in self.optimizer.param_groups:
                group["lr"] = moment.learning_rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return report

    def gradients(self, parts: Sequence[SequenceBatch], moment: Moment) -> StepReport:
        """Leave the window's clipped gradient in the parameters' `.grad`."""
        blocks = [self._blocks(part, moment) for part in parts]
        window: Terms | None = None
        if len(parts) > 1:
            with torch.no_grad():
                window = Terms.total([self._terms(p, b, moment) for p, b in zip(parts, blocks, strict=True)])
        loss = 0.0
        for part, cut in zip(parts, blocks, strict=True):
            terms = self._terms(part, cut, moment)
            if window is None:
                window = Terms.total([terms])
            share = self.objective.loss(terms, window, moment)
            loss += share.item()
            if not math.isfinite(loss):
                break
            share.backward()  # type: ignore[no-untyped-call]
        assert window is not None
        norm = math.nan
        if math.isfinite(loss):
            norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.clip).item()
        return StepReport(
            loss=loss,
            means=dict(zip(self.objective.names, window.means().tolist(), strict=True)),
            gradient_norm=norm,
            blocks=sum(cut.count for cut in blocks),
            tokens=sum(int(cut.supervised.sum()) for cut in blocks),
            bad=() if math.isfinite(norm) else suspects(parts),
        )

    def _blocks(self, batch: SequenceBatch, moment: Moment) -> Blocks:
        anchors = [
            draw_anchors(mask[:length], self.anchors_per_sample, seed=self.seed, epoch=moment.epoch, sample=name)
            for mask, length, name in zip(batch.loss_mask, batch.lengths.tolist(), batch.sample_ids, strict=True)
        ]
        return cut_blocks(batch.ids, batch.loss_mask, batch.lengths, anchors, self.drafter.candidates)

    def _terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        with self._autocast():
            return self.objective.terms(batch, blocks, moment)

    def _autocast(self) -> AbstractContextManager[object]:
        device = next(self.drafter.parameters()).device.type
        return torch.autocast(device, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16)


def widened(batch: SequenceBatch, multiple: int = WIDTH) -> SequenceBatch:
    """The batch padded on the right to a multiple of positions.

    Lengths differ from window to window; the library that multiplies matrices compiles and keeps code for every shape
    that it meets, so few shapes save memory and time.
    """
    missing = -batch.ids.shape[1] % multiple
    pad = torch.nn.functional.pad
    return replace(
        batch,
        ids=pad(batch.ids, (0, missing)),
        loss_mask=pad(batch.loss_mask, (0, missing)),
        features=pad(batch.features, (0, 0, 0, missing)),
        hidden=pad(batch.hidden, (0, 0, 0, missing)),
        lse=pad(batch.lse, (0, missing)),
    )


def suspects(parts: Sequence[SequenceBatch]) -> tuple[str, ...]:
    """The samples with a number that is not finite; where there is none, all of the window."""
    found = [
        name
        for part in parts
        for row, name in enumerate(part.sample_ids)
        if not all(_finite(values[row]) for values in (part.features, part.hidden, part.lse))
    ]
    return tuple(found) or tuple(name for part in parts for name in part.sample_ids)


def _finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())
