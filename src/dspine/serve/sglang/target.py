"""SGLang's target model, as far as a drafter has to know it.

One rule: it is looked up here and nowhere else where SGLang keeps what `adapter.target` is made of.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.dflash_utils import is_dense_head_weight

from dspine.errors import ServeError
from dspine.serve.adapter.target import ServedTarget


def served_target(worker: Any) -> ServedTarget:
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
    return ServedTarget(
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
