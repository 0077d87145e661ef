"""What a DSPINE server does not do: flags of its launch line, parameters of its requests.

One rule: lossless or refused, and each limit says why it is one. Sources: the published limits of DSpine
(arXiv 2609.36173) in SGLang, and what SGLang's DFlash worker would ignore without a word.
"""

from __future__ import annotations

from typing import Any

from dspine.errors import ServeError
from dspine.serve.adapter.limit import Limit, one_of

NAME = "DSPINE"
DEVICES = {"cuda"}  # kinds of device; a harness that brings what another one lacks may add it

_FP4 = ("nvfp4", "fp4_mx_block16", "mxfp8")
_REPLAY = "--enable-linear-replayssm-spec"


_LIMITS = (
    Limit(
        "--device {}",
        lambda a: str(a.device).split(":")[0],
        lambda kind: kind in DEVICES,
        "the draft's attention and the sampled verification have kernels for CUDA alone",
        "Run it on an NVIDIA GPU; on other machines serve with `dspine serve`.",
    ),
    Limit(
        "--tp-size {}",
        lambda a: a.tp_size,
        one_of(1),
        "candidates are scored with rows of the whole LM head, and it would lie in parts",
        "--tp-size 1; use more GPUs by replicas (--dp-size), each with the whole model.",
    ),
    Limit(
        "--pp-size {}",
        lambda a: a.pp_size,
        one_of(1),
        "the drafter reads layers that would lie on other ranks",
        "--pp-size 1",
    ),
    Limit(
        "--enable-dp-attention",
        lambda a: a.enable_dp_attention,
        one_of(False),
        "idle ranks would have to join the draft's collectives",
        "Leave it out.",
    ),
    Limit(
        "--speculative-draft-model-path missing",
        lambda a: a.speculative_draft_model_path,
        lambda path: path is not None,
        "there is no drafter",
        "Give the folder or hub id of a DSpine drafter.",
    ),
    Limit(
        "--speculative-draft-window-size {}",
        lambda a: a.speculative_draft_window_size,
        one_of(None),
        "the drafter was trained to see the whole context",
        "Leave it out.",
    ),
    Limit(
        "--speculative-dflash-block-size {}",
        lambda a: a.speculative_dflash_block_size,
        one_of(None),
        "it is DFLASH's",
        "Say --speculative-num-draft-tokens.",
    ),
    Limit(
        "--speculative-num-steps {}",
        lambda a: a.speculative_num_steps,
        one_of(None, 1),
        "a block is drafted in one step",
        "Leave it out; --speculative-num-draft-tokens says how long a block is.",
    ),
    Limit(
        "--speculative-eagle-topk {}",
        lambda a: a.speculative_eagle_topk,
        one_of(None, 1),
        "candidates are a chain, no tree",
        "Leave it out.",
    ),
    Limit(
        "--speculative-accept-threshold-single {}",
        lambda a: a.speculative_accept_threshold_single,
        one_of(1.0),
        "verification keeps the target's distribution, and a threshold would not",
        "Leave it out.",
    ),
    Limit(
        "--speculative-accept-threshold-acc {}",
        lambda a: a.speculative_accept_threshold_acc,
        one_of(1.0),
        "verification keeps the target's distribution, and a threshold would not",
        "Leave it out.",
    ),
    Limit(
        "--speculative-draft-model-quantization {}",
        lambda a: a.speculative_draft_model_quantization if a._speculative_draft_quantization_explicitly_set else None,
        one_of(None),
        "a drafter's weights are used as they were trained",
        "Leave it out, or say unquant.",
    ),
    Limit(
        "--disaggregation-mode {}",
        lambda a: a.disaggregation_mode,
        one_of("null"),
        "the draft's context cache would not travel from prefill to decode",
        "Serve prefill and decode together.",
    ),
    Limit(
        "--kv-cache-dtype {}",
        lambda a: a.kv_cache_dtype,
        lambda kind: kind not in _FP4,
        "the draft's context cache writes the accepted part of a block, which block-scaled formats have no kernel for",
        "--kv-cache-dtype auto, bfloat16, fp8_e4m3 or fp8_e5m2",
    ),
    Limit(
        "--tokenizer-worker-num {}",
        lambda a: a.tokenizer_worker_num,
        one_of(1),
        "SGLang loads no plugin in further tokenizer workers, which then do not know DSPINE",
        "--tokenizer-worker-num 1",
    ),
    Limit(
        "--enable-deterministic-inference",
        lambda a: a.enable_deterministic_inference,
        one_of(False),
        "sampled drafts and their verification draw from one generator, not from a request's seed",
        "Leave it out; greedy requests are reproducible without it.",
    ),
)

_REPLAY_LIMITS = (
    Limit(
        "--enable-unified-memory",
        lambda a: a.enable_unified_memory,
        one_of(False),
        f"the commit of {_REPLAY} addresses the standard pool",
        "Leave one of the two out.",
    ),
    Limit(
        "--disable-radix-cache",
        lambda a: a.disable_radix_cache,
        one_of(False),
        f"{_REPLAY} keeps its checkpoints in it",
        "Leave one of the two out.",
    ),
    Limit(
        "--mamba-radix-cache-strategy {}",
        lambda a: a.mamba_radix_cache_strategy,
        one_of("extra_buffer"),
        f"{_REPLAY} commits through the extra buffer",
        "--mamba-radix-cache-strategy extra_buffer",
    ),
    Limit(
        "--mamba-ssm-dtype {}",
        lambda a: a.mamba_ssm_dtype,
        one_of("float32"),
        f"{_REPLAY} folds accepted steps into the state again and again, which drifts in less",
        "--mamba-ssm-dtype float32",
    ),
    Limit(
        "--linear-attn-prefill-backend {}",
        lambda a: a.linear_attn_prefill_backend or a.linear_attn_backend,
        one_of("triton"),
        f"the ring of {_REPLAY} is written by the triton kernels",
        "--linear-attn-backend triton",
    ),
    Limit(
        "--linear-attn-decode-backend {}",
        lambda a: a.linear_attn_decode_backend or a.linear_attn_backend,
        one_of("triton"),
        f"the ring of {_REPLAY} is written by the triton kernels",
        "--linear-attn-backend triton",
    ),
    Limit(
        "--enable-linear-replayssm",
        lambda a: a.enable_linear_replayssm,
        one_of(False),
        f"it drives the ring of {_REPLAY} another way",
        "Leave one of the two out.",
    ),
)


def ring_limit(args: Any) -> ServeError | None:
    """A refusal where the ring of replayed steps cannot hold a block; the block's rows must be resolved by now.

    SGLang turns in the ring by the bits of a number and multiplies matrices of its length, which take 16 at least; it
    asks for none of this itself.
    """
    ring, block = args.linear_replayssm_cache_len, args.speculative_num_draft_tokens
    if not args.enable_linear_replayssm_spec or (ring >= max(16, block) and ring & (ring - 1) == 0):
        return None
    enough = 1 << (max(16, block) - 1).bit_length()
    return ServeError(
        f"dspine does not serve with --linear-replayssm-cache-len {ring}: the ring of {_REPLAY} holds blocks of "
        f"{block}, and its length is a power of two, 16 at least",
        f"--linear-replayssm-cache-len {enough}; twice that folds steps into the state less often.",
    )


def broken_limits(args: Any) -> list[ServeError]:
    """A refusal for each argument that DSPINE cannot honour, in the order of the tables."""
    limits = _LIMITS + (_REPLAY_LIMITS if args.enable_linear_replayssm_spec else ())
    return [error for limit in limits if (error := limit.check(args)) is not None]


# Request parameter → the value under which it does nothing. Each depends on the tokens before its position, and
# SGLang's verification of a DFlash block counts none of those that a block adds.
_PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "min_new_tokens": 0}


def refused_outputs(request: Any) -> str | None:
    """Why what a request wants back cannot be given, or None."""
    if not request.return_hidden_states:
        return None
    return (
        f"return_hidden_states: not supported under {NAME}, since those of a verification go to the drafter and are "
        "kept no longer. Ask a server without speculative decoding."
    )


def refused_parameters(params: Any) -> str | None:
    """Why a request's sampling parameters cannot be honoured, or None."""
    given = {name: getattr(params, name) for name in _PENALTIES}
    wrong = [f"{name}={value}" for name, value in given.items() if value != _PENALTIES[name]]
    if not wrong:
        return None
    return (
        f"{', '.join(wrong)}: not supported under {NAME}, since it depends on tokens of the block that is being "
        "verified. Leave it out, use logit_bias, or ask a server without speculative decoding."
    )
