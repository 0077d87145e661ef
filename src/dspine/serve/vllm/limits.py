"""What vLLM may be told and a DSpine drafter cannot honour there.

One rule: lossless or refused. Source: DSpine (arXiv 2609.36173), and what vLLM's DFlash proposer would ignore or do
otherwise without a word.
"""

from __future__ import annotations

from typing import Any

from dspine.errors import ServeError
from dspine.serve.adapter.limit import Limit, one_of

METHOD = "dflash"

_LIMITS = (
    Limit(
        '"draft_sample_method": "{}"',
        lambda v: v.speculative_config.draft_sample_method,
        one_of("greedy"),
        "vLLM has no place for the law of a sampled walk, which is over other candidates at every place",
        "Leave it out: drafts are greedy, and sampled requests keep the target's law all the same.",
    ),
    Limit(
        '"rejection_sample_method": "{}"',
        lambda v: v.speculative_config.rejection_sample_method,
        one_of("standard"),
        "only the standard verification was tested, and synthetic acceptance changes the output",
        "Leave it out.",
    ),
    Limit(
        '"num_speculative_tokens_per_batch_size": {}',
        lambda v: v.speculative_config.num_speculative_tokens_per_batch_size,
        one_of(None),
        "blocks would change their length from step to step",
        "Leave it out.",
    ),
    Limit(
        '"quantization": "{}"',
        lambda v: v.speculative_config.draft_model_config.quantization,
        one_of(None),
        "a drafter's weights are used as they were trained",
        "Leave it out.",
    ),
    Limit(
        "--tensor-parallel-size {}",
        lambda v: v.parallel_config.tensor_parallel_size,
        one_of(1),
        "candidates are scored with rows of the whole LM head, and it would lie in parts",
        "--tensor-parallel-size 1; use more GPUs by replicas (--data-parallel-size), each with the whole model.",
    ),
    Limit(
        "--pipeline-parallel-size {}",
        lambda v: v.parallel_config.pipeline_parallel_size,
        one_of(1),
        "the drafter reads layers that would lie on other ranks",
        "--pipeline-parallel-size 1",
    ),
    Limit(
        "model runner V2",
        lambda v: v.use_v2_model_runner,
        one_of(False),
        "only the proposer of V1 was tested",
        "Set VLLM_USE_V2_MODEL_RUNNER=0.",
    ),
)


def broken_limits(config: Any) -> list[ServeError]:
    """A refusal for each setting that a drafter cannot honour.

    Args:
        config: vLLM's VllmConfig, with a drafter under the method dflash.
    """
    return [error for limit in _LIMITS if (error := limit.check(config)) is not None]


def check_method(config: Any) -> None:
    """Refuse a DSpine drafter that is no drafter, or under another method.

    Args:
        config: vLLM's VllmConfig.

    Raises:
        ServeError: naming the setting that is right.
    """
    spec = config.speculative_config
    if spec is None or spec.draft_model_config is None:
        raise ServeError(
            f"{config.model_config.model} holds a DSpine drafter, which answers nothing by itself",
            f"vllm serve TARGET --speculative-config {_setting(config.model_config.model, 7)}",
        )
    if spec.method != METHOD:
        raise ServeError(
            f'"method": "{spec.method}": {spec.model} holds a DSpine drafter',
            f"--speculative-config {_setting(spec.model, spec.num_speculative_tokens)}",
        )


def _setting(drafter: str, tokens: int) -> str:
    return f'\'{{"method": "{METHOD}", "model": "{drafter}", "num_speculative_tokens": {tokens}}}\''


def check_block(given: int, candidates: int) -> None:
    """Refuse longer blocks than the drafter knows. Rows see none behind them, so that a shorter one is a beginning.

    Raises:
        ServeError: with the number it was trained with.
    """
    if given > candidates:
        raise ServeError(
            f'"num_speculative_tokens": {given}: this drafter was trained to draft {candidates} (its block_size is '
            "one more, the anchor)",
            f"Give 1 to {candidates}.",
        )
