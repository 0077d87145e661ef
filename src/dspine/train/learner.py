"""One optimiser step: from the sequences of a window to the gradient, guarded, and to new weights.

One rule: the gradient of a window does not depend on how the window is split into processes and micro-batches. Where a
process has several, a pass without gradient first collects the window's sums and denominators; anchors and draws are
keyed by seed, epoch and sample, so the second pass sees the same blocks. Source: DSpine (arXiv 2609.36173), training.
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
from dspine.train.processes import ALONE, Processes
from dspine.train.sequences import SequenceBatch
from dspine.train.together import Together

WIDTH = 64  # positions of a batch are a multiple of it


@dataclass(frozen=True)
class StepReport:
    """What one step did, over all processes. `bad` names the suspect samples when a number was not finite and the
    weights stayed. `match` and `acceptance`: see `Terms.by_place`."""

    loss: float
    means: dict[str, float]
    gradient_norm: float
    blocks: int
    tokens: int
    match: list[float]
    acceptance: list[float | None]
    bad: tuple[str, ...] = ()


class Learner:
    """A drafter, its optimiser and its objective.

    Args:
        drafter: float32 (or float64) weights; those that require a gradient are trained in place.
        objective: what it is trained for.
        clip: largest norm of the gradient.
        anchors_per_sample: blocks drawn of a sequence, at most.
        precision: of the matrix products; bfloat16 means autocast, weights and losses stay as they are.
        seed: of anchors.
        processes: those that share a window; sharded: whether they also share out the weights.
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
        processes: Processes = ALONE,
        sharded: bool = False,
    ) -> None:
        self.drafter = drafter
        self.objective = objective
        self.clip = clip
        self.anchors_per_sample = anchors_per_sample
        self.precision = precision
        self.seed = seed
        self.processes = processes
        self.together = Together(drafter, self._compute, processes, sharded=sharded)
        trained = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0, fused=True)

    def step(self, parts: Sequence[SequenceBatch], moment: Moment) -> StepReport:
        """Move the weights by one window; where its loss or gradient is not finite they stay, bit for bit.

        Args:
            parts: this process's micro-batches of the window; it may have none.
        """
        report = self.gradients([widened(part) for part in parts], moment)
        if not report.bad:
            for group in self.optimizer.param_groups:
                group["lr"] = moment.learning_rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return report

    def gradients(self, parts: Sequence[SequenceBatch], moment: Moment) -> StepReport:
        """Leave the window's clipped gradient in the parameters' `.grad`."""
        # All processes take the same number of passes: one that has fewer sequences runs nothing's.
        missing = self.processes.most(max(1, len(parts))) - len(parts)
        batches = [*parts, *[self._nothing()] * missing]
        cuts = [self._blocks(batch, moment) for batch in batches]
        if len(batches) > 1:
            with torch.no_grad():
                window = self._window([Terms(*self.together(b, c, moment)) for b, c in zip(batches, cuts, strict=True)])
        loss, norm = 0.0, math.nan
        for number, (batch, cut) in enumerate(zip(batches, cuts, strict=True), start=1):
            with self.together.accumulating(last=number == len(batches)):
                part = Terms(*self.together(batch, cut, moment))
                if len(batches) == 1:
                    window = self._window([part])
                if not self._finite(window, moment):
                    loss = math.nan
                    break
                share = self.objective.loss(part, window, moment)
                loss += share.item()
                self.together.backward(share)
        else:
            norm = self.together.norm_and_clip(self.clip)
        self.together.settle()
        counts = [loss, sum(cut.count for cut in cuts), sum(int(cut.supervised.sum()) for cut in cuts)]
        loss, blocks, tokens = self.processes.total(torch.tensor(counts, dtype=torch.float64)).tolist()
        match, acceptance = window.by_place()
        return StepReport(
            loss=loss,
            means=dict(zip(self.objective.names, window.means().tolist(), strict=True)),
            gradient_norm=norm,
            blocks=int(blocks),
            tokens=int(tokens),
            match=match,
            acceptance=acceptance,
            bad=() if math.isfinite(norm) else self._suspects(parts),
        )

    def _window(self, parts: Sequence[Terms]) -> Terms:
        """The terms of the whole window, over all processes."""
        return Terms(*map(self.processes.total, Terms.total(parts).detached()))

    def _finite(self, window: Terms, moment: Moment) -> bool:
        """Whether the window's loss is finite: the same answer in every process."""
        return math.isfinite(self.objective.loss(window, window, moment).item())

    def _suspects(self, parts: Sequence[SequenceBatch]) -> tuple[str, ...]:
        """The broken samples of the window; where none is broken, all of them."""
        found = self.processes.gathered([name for part in parts for name in broken(part)])
        return found or self.processes.gathered([name for part in parts for name in part.sample_ids])

    def _nothing(self) -> SequenceBatch:
        """A micro-batch of one sequence without a token: it adds 0 to every sum."""
        config = self.drafter.config
        device = next(self.drafter.parameters()).device
        ids = torch.zeros(1, WIDTH, dtype=torch.int64, device=device)
        numbers = ids[..., None].float()
        return SequenceBatch(
            sample_ids=("",),
            ids=ids,
            loss_mask=ids.bool(),
            lengths=ids[:, 0],
            features=numbers.expand(-1, -1, config.feature_size),
            hidden=numbers.expand(-1, -1, config.hidden_size),
            lse=numbers[..., 0],
        )

    def _blocks(self, batch: SequenceBatch, moment: Moment) -> Blocks:
        anchors = [
            draw_anchors(mask[:length], self.anchors_per_sample, seed=self.seed, epoch=moment.epoch, sample=name)
            for mask, length, name in zip(batch.loss_mask, batch.lengths.tolist(), batch.sample_ids, strict=True)
        ]
        return cut_blocks(batch.ids, batch.loss_mask, batch.lengths, anchors, self.drafter.candidates)

    def _compute(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> tuple[Tensor, ...]:
        with self._autocast():
            terms = self.objective.terms(batch, blocks, moment)
        return terms.sums, terms.denominators, terms.places

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


def broken(batch: SequenceBatch) -> list[str]:
    """The samples with a number that is not finite."""
    return [
        name
        for row, name in enumerate(batch.sample_ids)
        if not all(_finite(values[row]) for values in (batch.features, batch.hidden, batch.lse))
    ]


def _finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())
