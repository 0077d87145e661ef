"""SGLang's target model, as far as a drafter has to know it.

One rule: what `checkpoint.fit` asks of a target, read from where SGLang keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from sglang.srt.speculative.dflash_utils import is_dense_head_weight
from torch import Tensor, nn

from dspine.errors import ServeError
from dspine.target.describe import digest_rows


@dataclass(frozen=True)
class ServedTarget:
    """A loaded target.

    head: the LM-head module of SGLang, whose first `vocab_size` rows are the vocabulary's.
    tokenizer: transformers' tokenizer; None where SGLang was told not to load one.
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

    @classmethod
    def of(cls, worker: Any) -> ServedTarget:
        """The target of an SGLang worker.

        Raises:
            ServeError: its LM head is quantised or missing.
        """
        runner = worker.model_runner
        config, model = runner.model_config, runner.model
        head: Any = getattr(model, "lm_head", None)
        if not is_dense_head_weight(getattr(head, "weight", None)):
            raise ServeError(
                f"the LM head of {config.model_path} is no matrix of floating-point numbers",
                "Serve a checkpoint whose lm_head is not quantised: candidates are scored with its rows.",
            )
        return cls(
            name=config.model_path,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            vocab_size=int(head.org_vocab_size),
            dtype=head.weight.dtype,
            embedding=model.get_input_embeddings(),
            head=head,
            tokenizer=worker.tokenizer,
            eos_ids=frozenset(config.hf_eos_token_id or ()),
            context=config.context_len,
        )

    @property
    def head_weight(self) -> Tensor:
        """The head's rows (V, d), without those that SGLang pads it with."""
        rows: Tensor = self.head.weight[: self.vocab_size]
        return rows.detach()

    @cached_property
    def head_digest(self) -> str:
        """sha256 of the head's rows as bfloat16 (hex)."""
        return digest_rows(self.head_weight)
