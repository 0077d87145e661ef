"""SGLang's server arguments under DSPINE: what is filled in, and what is refused.

One rule: what would be ignored, or would change the output, is an error before a weight is loaded; its message names
the flag, why, and the command that is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES
from sglang.srt.arg_groups.model_override_base import resolving_view

from dspine.errors import ServeError
from dspine.serve.adapter.draft import drafter_folder, is_dspine
from dspine.serve.sglang.draft import open_draft
from dspine.serve.sglang.limits import NAME, broken_limits, ring_limit

RUNNING_REQUESTS = 48  # SGLang's own default for speculative decoding


def resolve(args: Any) -> None:
    """Check the arguments of a DSPINE server and fill in what is not given.

    Args:
        args: SGLang's stand-in for its server arguments; what is set on it is declared.

    Raises:
        ServeError: an argument that DSPINE cannot honour. CheckpointError: a drafter that is none.
    """
    if broken := broken_limits(args):
        raise broken[0]
    folder = drafter_folder(args.speculative_draft_model_path, args.speculative_draft_model_revision)
    checkpoint = open_draft(folder)
    args.speculative_draft_model_path = str(folder)
    args.speculative_draft_model_quantization = None  # a target's quantisation is not its drafter's
    args.speculative_num_steps = 1
    args.speculative_eagle_topk = 1
    args.speculative_num_draft_tokens = _block(args.speculative_num_draft_tokens, checkpoint.config.dspine.block_size)
    if ring := ring_limit(args):
        raise ring
    if args.speculative_draft_attention_backend is None:
        args.speculative_draft_attention_backend = _draft_backend(args)
    if args.max_running_requests is None:
        args.max_running_requests = RUNNING_REQUESTS


def _block(given: int | None, trained: int) -> int:
    """Rows of a block. Rows see none behind them, so that a shorter block is the beginning of the trained one."""
    if given is None:
        return trained
    if not 2 <= given <= trained:
        raise ServeError(
            f"--speculative-num-draft-tokens {given}: this drafter was trained with blocks of {trained} (the anchor "
            f"and {trained - 1} candidates)",
            f"Leave it out, or give 2 to {trained}.",
        )
    return given


def _draft_backend(args: Any) -> str:
    """The target's prefill backend if a draft block can run on it: it is a causal chain, like a verification."""
    prefill = args.prefill_attention_backend or args.attention_backend
    return prefill if prefill in DRAFT_ATTENTION_BACKEND_CHOICES else "flashinfer"


def guard_other_algorithms(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Refuse a DSpine drafter under another algorithm, which would load it and ignore what makes it one.

    Raises:
        ServeError: naming the command that is right.
    """
    args = resolving_view(server_args)
    algorithm, drafter = args.speculative_algorithm, args.speculative_draft_model_path
    other = algorithm is not None and algorithm.upper() != NAME
    if other and drafter is not None and is_dspine(drafter, args.speculative_draft_model_revision):
        raise ServeError(
            f"--speculative-algorithm {algorithm}: {drafter} holds a DSpine drafter",
            f"sglang serve --model-path {args.model_path} --speculative-algorithm {NAME} "
            f"--speculative-draft-model-path {drafter}",
        )
    previous(server_args)
