"""What the target tells of whole sequences: tapped features, final hidden states, and their log-sum-exp.

One rule: one forward, `Target.forward`, makes these numbers for the disk and for the batch in memory alike.

Position p is a *teacher* when the token at p+1 is trained on: the target's logits at p are what the drafter learns
from. Its law needs the whole vocabulary only once: with `lse` kept, the probability of any id v is
exp(logit_v - lse). Source: DSpine (arXiv 2609.36173), training: features, and the teacher's distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dspine.errors import DataError
from dspine.kernels.kv import Span
from dspine.target.model import Target
from dspine.train.responses import ResponseRow, TrainingSequence, training_sequences

TOKENS_AT_ONCE = 2048  # of one forward, padding included
WIDTH = 512  # tokens of a row in one forward: bounds the attention scores of long sequences
LOGITS_AT_ONCE = 1 << 24  # numbers of one chunk of full-vocabulary logits


@dataclass(frozen=True)
class Encoded:
    """One sequence of S tokens with R teachers, on the target's device.

    ids (S,) int64; loss_mask (S,) bool; features (S, m·d); of the teachers alone: hidden (R, d) in the target's own
    dtype, for an exact teacher, and lse (R,) float32.
    """

    id: str
    ids: Tensor
    loss_mask: Tensor
    features: Tensor
    hidden: Tensor
    lse: Tensor

    @property
    def finite(self) -> bool:
        """Whether no number is NaN or infinite."""
        return all(bool(t.isfinite().all()) for t in (self.features, self.hidden, self.lse))


@dataclass(frozen=True)
class SequenceBatch:
    """N sequences, padded with zeros on the right to the longest (S).

    Attributes:
        sample_ids: of the rows.
        ids: (N, S) int64; loss_mask: (N, S) bool; lengths: (N,) int64.
        features: (N, S, m·d) float32, in the order of the taps.
        hidden: (N, S, d) float32, final-normed, at teachers; 0 elsewhere.
        lse: (N, S) float32, at teachers; 0 elsewhere.
        skipped: ids of samples that were asked for and left out because a number of theirs was not finite.
    """

    sample_ids: tuple[str, ...]
    ids: Tensor
    loss_mask: Tensor
    lengths: Tensor
    features: Tensor
    hidden: Tensor
    lse: Tensor
    skipped: tuple[str, ...] = ()

    def to(self, device: torch.device | str) -> SequenceBatch:
        """The same batch with its tensors on `device`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def teachers(loss_mask: Tensor) -> Tensor:
    """Which positions teach: bool like `loss_mask` (..., S), True at p when p+1 is trained on."""
    return torch.cat((loss_mask[..., 1:], torch.zeros_like(loss_mask[..., :1])), dim=-1)


def trainable(
    target: Target, rows: Sequence[ResponseRow], max_length: int | None = None
) -> tuple[list[TrainingSequence], list[str]]:
    """Make rows sequences (see `training_sequences`), and check them against the target.

    Returns:
        the sequences, and the ids of those that have nothing to train on within `max_length`.

    Raises:
        DataError: a token id that the target does not have, or a sequence beyond its context.
    """
    sequences, empty = [], []
    for sequence in training_sequences(rows, max_length):
        if max(sequence.ids) >= target.vocab_size:
            raise DataError(
                f"response row {sequence.id!r} holds token id {max(sequence.ids)}; {target.name} has "
                f"{target.vocab_size}",
                "These responses are another target's: write them anew with `dspine regenerate`.",
            )
        if len(sequence.ids) > target.context_limit:
            raise DataError(
                f"response row {sequence.id!r} has {len(sequence.ids)} tokens; the context of {target.name} ends at "
                f"{target.context_limit}",
                f"Cut sequences with max_length: {target.context_limit}.",
            )
        # The first token has no position before it that could teach it.
        if any(sequence.loss_mask[1:]):
            sequences.append(sequence)
        else:
            empty.append(sequence.id)
    return sequences, empty


def encode(
    target: Target,
    sequences: Sequence[TrainingSequence],
    taps: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> Iterator[Encoded]:
    """Run sequences through the target, in the order given; of about equal lengths they pad least.

    Args:
        taps: layer ids.
        dtype: of the features.

    Raises:
        TargetError: for taps that the target does not have.
    """
    for group in _groups(sequences):
        longest = max(len(s.ids) for s in group)
        ids = torch.zeros(len(group), longest, dtype=torch.int64)
        for row, sequence in enumerate(group):
            ids[row, : len(sequence.ids)] = torch.tensor(sequence.ids)
        hidden, features = _forward(target, ids.to(target.device), taps)
        for row, sequence in enumerate(group):
            size = len(sequence.ids)
            mask = torch.tensor(sequence.loss_mask, device=target.device)
            taught = hidden[row, :size][teachers(mask)]
            # A clone: a view would keep the whole group in memory.
            tapped = features[row, :size].to(dtype, copy=True)
            own = torch.tensor(sequence.ids, device=target.device)
            yield Encoded(sequence.id, own, mask, tapped, taught, log_sum_exp(target, taught))


def _groups(sequences: Sequence[TrainingSequence]) -> Iterator[list[TrainingSequence]]:
    group: list[TrainingSequence] = []
    longest = 0
    for sequence in sequences:
        longest = max(longest, len(sequence.ids))
        if group and longest * (len(group) + 1) > TOKENS_AT_ONCE:
            yield group
            group, longest = [], len(sequence.ids)
        group.append(sequence)
    if group:
        yield group


def _forward(target: Target, ids: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Hidden states (B, S, d) and features (B, S, m·d) of right-padded ids (B, S)."""
    rows, length = ids.shape
    cache = target.new_cache(rows)
    cache.rows.reserve(length)
    edges = [*range(0, length, WIDTH), length]
    parts = [
        target.forward(ids[:, first:end], cache, Span(0, (first,) * rows, end - first, whole=True), taps)
        for first, end in pairwise(edges)
    ]
    features = [part.features for part in parts if part.features is not None]
    return torch.cat([part.hidden for part in parts], dim=1), torch.cat(features, dim=1)


@torch.no_grad()
def log_sum_exp(target: Target, hidden: Tensor) -> Tensor:
    """Log-sum-exp over the whole vocabulary of the logits of hidden states (R, d): (R,) float32."""
    chunk = max(1, LOGITS_AT_ONCE // target.vocab_size)
    return torch.cat([_log_sum_exp(_teacher_logits(target, rows)) for rows in torch.split(hidden, chunk)])


def _teacher_logits(target: Target, hidden: Tensor) -> Tensor:
    """Logits in float32 at least, also of a target in half precision.

    The teacher's logits are products in float32 (`DraftVocabulary.exact_logits`): half precision would round them by
    several hundredths, and with them every probability.
    """
    if hidden.dtype in (torch.bfloat16, torch.float16):
        return hidden.float() @ target.wide_head.T
    return target.logits(hidden)


def _log_sum_exp(logits: Tensor) -> Tensor:
    # Not `logsumexp`: it takes three times as long on a CPU, with a pass over the logits for each of its steps.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (wide[..., 0] - wide.log_softmax(-1)[..., 0]).float()


def collate(encoded: Sequence[Encoded], widths: tuple[int, int], skipped: Sequence[str] = ()) -> SequenceBatch:
    """Pad sequences into one batch; `widths` are those of features and hidden states, m·d and d."""
    longest = max((len(e.ids) for e in encoded), default=1)
    device = encoded[0].ids.device if encoded else torch.device("cpu")

    def empty(*last: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(len(encoded), longest, *last, dtype=dtype, device=device)

    ids, mask, lse = empty(dtype=torch.int64), empty(dtype=torch.bool), empty()
    features, hidden = empty(widths[0]), empty(widths[1])
    for row, e in enumerate(encoded):
        size = len(e.ids)
        ids[row, :size] = e.ids
        mask[row, :size] = e.loss_mask
        features[row, :size] = e.features.float()
        where = teachers(e.loss_mask)
        hidden[row, :size][where] = e.hidden.float()
        lse[row, :size][where] = e.lse
    lengths = torch.tensor([len(e.ids) for e in encoded], dtype=torch.int64, device=device)
    names = tuple(e.id for e in encoded)
    return SequenceBatch(names, ids, mask, lengths, features, hidden, lse, tuple(skipped))


def online_batch(
    target: Target, rows: Sequence[ResponseRow], taps: Sequence[int], max_length: int | None = None
) -> SequenceBatch:
    """What a feature store would give for these rows, made without a disk, on the target's device.

    Rows whose numbers are not finite or that have nothing to train on are left out and named in `skipped`.

    Raises:
        DataError, TargetError: see `trainable` and `encode`.
    """
    sequences, skipped = trainable(target, rows, max_length)
    kept = []
    for encoded in encode(target, sequences, taps):
        if encoded.finite:
            kept.append(encoded)
        else:
            skipped.append(encoded.id)
    return collate(kept, (len(taps) * target.hidden_size, target.hidden_size), skipped)
