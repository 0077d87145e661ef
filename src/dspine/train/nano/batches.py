"""Conversations as training batches for the nano target.

One rule: a row is one conversation from position 0, padded on the right; only what the assistant wrote, its closing
`<|im_end|>` included, is a label. Rows of like length go together, so that little is padding.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspine.train.nano.corpus import Conversation

IGNORED = -100  # a label that does not count


@dataclass(frozen=True)
class Batch:
    """`ids` (B, T) int64; `labels` (B, T) int64: the id that follows each position, or IGNORED."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Row:
    """One conversation: its ids, and for each whether the assistant wrote it."""

    ids: list[int]
    written: list[bool]


def encode(conversations: Iterable[Conversation], tokenizer: Any, max_length: int) -> list[Row]:
    """Render and tokenise; conversations longer than `max_length` are left out."""
    rows = []
    for conversation in conversations:
        encoded = tokenizer.apply_chat_template(
            conversation["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        if len(encoded["input_ids"]) <= max_length:
            rows.append(Row(encoded["input_ids"], [bool(flag) for flag in encoded["assistant_masks"]]))
    return rows


def batches(rows: list[Row], batch_tokens: int, pad: int, rng: random.Random) -> Iterator[Batch]:
    """Endless batches of about `batch_tokens` tokens, padding included; a new order in every epoch.

    Rows of a batch differ by less than 8 tokens, or it ends where the lengths jump; by that much it may be larger.
    """
    while True:
        order = sorted(rows, key=lambda row: (len(row.ids) // 8, rng.random()))
        groups: list[list[Row]] = [[]]
        for row in order:
            if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > batch_tokens:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from (collate(group, pad) for group in groups)


def collate(group: list[Row], pad: int) -> Batch:
    """Pad the rows of a group to one length."""
    width = max(len(row.ids) for row in group)
    ids = torch.full((len(group), width), pad, dtype=torch.int64)
    labels = torch.full((len(group), width), IGNORED, dtype=torch.int64)
    for place, row in enumerate(group):
        length = len(row.ids)
        ids[place, :length] = torch.tensor(row.ids)
        following, counts = torch.tensor(row.ids[1:]), torch.tensor(row.written[1:])
        labels[place, : length - 1] = torch.where(counts, following, IGNORED)
    return Batch(ids, labels)
