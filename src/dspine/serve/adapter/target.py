"""A target that an engine has loaded, as far as a drafter has to know it.

One rule: what `checkpoint.fit` asks of a target; where an engine keeps it is its adapter's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dspine.target.describe import digest_rows


@dataclass(frozen=True)
class ServedTarget:
    """A loaded target.

    head: the engine's LM-head module, whose first `vocab_size` rows of `weight` are the vocabulary's.
    tokenizer: transformers' tokenizer; None where the engine was told not to load one.
    context: positions that requests may use.
    """

    name: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    dtype: torch.dtype
    embedding: nn.Module
    head: Any
    tokenizer: Any
    eos_ids: frozenset[int]
    context: int

    @property
    def head_weight(self) -> Tensor:
        """The head's rows (V, d), without those that the engine pads it with."""
        rows: Tensor = self.head.weight[: self.vocab_size]
        return rows.detach()

    @cached_property
    def head_digest(self) -> str:
        """sha256 of the head's rows as bfloat16 (hex)."""
        return digest_rows(self.head_weight)
