"""Features online: the target runs in the training process, and nothing is kept on disk.

One rule: `load` gives what a feature store of the same settings would give, rounded alike, so that training does not
know which of the two it is fed by. The target's forward is paid for in every epoch anew.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

import torch

from dspine.progress import say
from dspine.target.model import Target
from dspine.train.responses import ResponseRow, TrainingSequence
from dspine.train.sequences import Encoded, SequenceBatch, collate, encode, trainable
from dspine.train.shards import DTYPES


class OnlineFeatures:
    """Features of response rows, made where they are asked for.

    Attributes:
        lengths: tokens of every sample, by id.

    Args:
        target: runs the sequences.
        rows: what it was asked and answered.
        taps: layer ids.
        dtype: that features are rounded to, a key of `DTYPES`.
        max_length: tokens kept of a sequence; None: all.

    Raises:
        DataError: a row that does not fit the target.
        TargetError: at the first batch: taps that the target does not have.
    """

    def __init__(
        self,
        target: Target,
        rows: Sequence[ResponseRow],
        taps: Sequence[int],
        *,
        dtype: str = "bfloat16",
        max_length: int | None = None,
    ) -> None:
        self.target, self.taps, self.dtype = target, tuple(taps), DTYPES[dtype]
        sequences, _ = trainable(target, rows, max_length)
        self._sequences = {sequence.id: sequence for sequence in sequences}
        self.lengths = {sequence.id: len(sequence.ids) for sequence in sequences}
        self._broken: set[str] = set()

    def load(self, sample_ids: Sequence[str]) -> SequenceBatch:
        """Samples as one padded batch on the target's device; features and hidden states as float32.

        A sample with a number that is not finite keeps its row, in which nothing is trained on, and `skipped` names it.
        """
        return self.batch(encode(self.target, *self.asked(sample_ids)))

    def stream(self, groups: Iterable[Sequence[str]]) -> Generator[SequenceBatch]:
        """A batch of each group of sample ids, as `load` gives it, made when it is asked for."""
        return (self.load(names) for names in groups)

    def asked(self, sample_ids: Sequence[str]) -> tuple[list[TrainingSequence], tuple[int, ...], torch.dtype]:
        """What the target is asked for these samples: `encode`'s arguments."""
        return [self._sequences[name] for name in sample_ids], self.taps, self.dtype

    def batch(self, samples: Iterable[Encoded]) -> SequenceBatch:
        """What the target said of samples, as `load` gives it."""
        encoded, skipped = [], []
        for sample in samples:
            if sample.finite:
                encoded.append(sample)
            else:
                encoded.append(_silenced(sample))
                skipped.append(sample.id)
        if new := [name for name in skipped if name not in self._broken]:
            say(f"Sequences skipped: {len(new)} (a number is not finite): {', '.join(new)}")
            self._broken.update(new)
        size = self.target.hidden_size
        return collate(encoded, (len(self.taps) * size, size), skipped)


def _silenced(sample: Encoded) -> Encoded:
    """The sample without its numbers and without a token to train on."""
    return replace(
        sample,
        loss_mask=torch.zeros_like(sample.loss_mask),
        features=torch.zeros_like(sample.features),
        hidden=sample.hidden[:0],
        lse=sample.lse[:0],
    )
