"""vLLM's target model, as far as a drafter has to know it.

One rule: it is looked up here and nowhere else where vLLM keeps what `adapter.target` is made of.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.tokenizers.registry import cached_tokenizer_from_config

from dspine.errors import ServeError
from dspine.serve.adapter.target import ServedTarget


def served_target(config: Any, embedding: nn.Module, head: Any) -> ServedTarget:
    """The target of a vLLM engine.

    Args:
        config: VllmConfig.
        embedding, head: modules of the loaded target.

    Raises:
        ServeError: its LM head is quantised.
    """
    model = config.model_config
    weight = getattr(head, "weight", None)
    if weight is None or weight.ndim != 2 or not weight.is_floating_point():
        raise ServeError(
            f"the LM head of {model.model} is no matrix of floating-point numbers",
            "Serve a checkpoint whose lm_head is not quantised: candidates are scored with its rows.",
        )
    return ServedTarget(
        name=model.model,
        hidden_size=model.get_hidden_size(),
        num_layers=model.get_total_num_hidden_layers(),
        vocab_size=int(head.org_vocab_size),
        dtype=weight.dtype,
        embedding=embedding,
        head=head,
        tokenizer=cached_tokenizer_from_config(model),
        eos_ids=_ends(model),
        context=model.max_model_len,
    )


def _ends(model: Any) -> frozenset[int]:
    said = model.try_get_generation_config().get("eos_token_id") or getattr(model.hf_text_config, "eos_token_id", None)
    if said is None:
        return frozenset()
    return frozenset([said] if isinstance(said, int) else said)
