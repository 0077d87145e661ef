"""What a probe looks at: a frozen drafter, the target's features of any tokens, and answers to look at.

One rule: whoever the target is, a probe knows it as a function from token ids to features; so a planted one will do.
Answers are the target's own, greedy, and kept on disk as a measurement's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspine.decode.sampling import SamplingParams
from dspine.drafter.dspine import DSpine
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.registry import KINDS, Network, kind_of
from dspine.errors import ConfigError, DataError
from dspine.evaluate.measure import Measurement
from dspine.evaluate.results import ResultFile
from dspine.evaluate.sources import Asked
from dspine.progress import Meter
from dspine.target import Target
from dspine.target.chat import render
from dspine.train.blocks import draw_anchors
from dspine.train.responses import TrainingSequence
from dspine.train.sequences import encode

Probed = DSpine | ParallelDrafter[Any]
# token ids of sequences → their features, (S, m·d) each
Features = Callable[[Sequence[Sequence[int]]], list[Tensor]]


@dataclass(frozen=True)
class Subject:
    """A drafter and what it is looked at on.

    features: of the drafter's taps, in the drafter's type and on its device.
    sequences: prompts with their answers.
    blocks: most blocks of an answer. seed: of which ones.
    """

    drafter: Probed
    features: Features
    sequences: list[TrainingSequence]
    blocks: int
    seed: int = 0

    def anchors(self, sequence: TrainingSequence) -> list[int]:
        """Positions of anchors whose whole block lies in the answer, ascending; none in a short answer."""
        whole = torch.tensor(sequence.loss_mask[: len(sequence.ids) - self.drafter.candidates + 1])
        return draw_anchors(whole, self.blocks, seed=self.seed, epoch=0, sample=sequence.id).tolist()

    def usable(self) -> list[TrainingSequence]:
        """The sequences that have a block.

        Raises:
            DataError: none has.
        """
        found = [sequence for sequence in self.sequences if self.anchors(sequence)]
        if not found:
            raise DataError(
                f"no answer is longer than a block of {self.drafter.candidates} tokens", "Ask for longer answers."
            )
        return found


def probed(drafter: Network) -> Probed:
    """The drafter, if a probe can look into it.

    Raises:
        ConfigError: it is none of the DFlash family.
    """
    if not isinstance(drafter, DSpine | ParallelDrafter):
        raise ConfigError(
            f"{KINDS[kind_of(drafter)].title} drafts token by token: there are no places of a block to look at",
            "Give a drafter of the DFlash family: DFlash, Domino, DSpark, DFlash2 or DSpine.",
        )
    return drafter


def features_of(target: Target, drafter: Probed) -> Features:
    """The target's features of a drafter's taps."""

    @torch.no_grad()
    def features(ids: Sequence[Sequence[int]]) -> list[Tensor]:
        sequences = [TrainingSequence(str(n), list(each), [False] * len(each)) for n, each in enumerate(ids)]
        return [found.features for found in encode(target, sequences, drafter.target_layer_ids, drafter.dtype)]

    return features


def answered(measurement: Measurement, asked: Sequence[Asked], params: SamplingParams) -> list[TrainingSequence]:
    """The plain greedy answers to prompts, from disk or made now, each behind its prompt.

    Raises:
        DataError: as `Measurement.answers`.
    """
    assert measurement.plain is not None
    answers = measurement.answers(measurement.plain, None, asked, params)
    found = []
    for prompt in (prompt for each in asked for prompt in each.prompts):
        before = render(measurement.target, [{"role": "user", "content": prompt.text}])
        said = list(answers[prompt.id].tokens)
        found.append(TrainingSequence(prompt.id, [*before, *said], [False] * len(before) + [True] * len(said)))
    return found


def each_sequence(
    file: ResultFile, subject: Subject, name: str, measure: Callable[[TrainingSequence], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One line a sequence in the file; those that are there already are not measured again.

    Returns:
        the lines, in the order of the sequences.
    """
    sequences = subject.usable()
    with Meter(name, len(sequences), "answers") as meter:
        for done, sequence in enumerate(sequences):
            if _key(sequence) not in file.lines:
                file.add([{"key": _key(sequence), "kind": "sequence", **measure(sequence)}])
            meter.update(done + 1, done + 1)
    return [file.lines[_key(sequence)] for sequence in sequences]


def padded(rows: Iterable[Tensor]) -> Tensor:
    """Features of several rows, (S_b, F) each → (B, S, F), zeros behind."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _key(sequence: TrainingSequence) -> str:
    return f"sequence/{sequence.id}"
