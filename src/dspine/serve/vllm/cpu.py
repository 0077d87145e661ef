"""What is wrong in vLLM's CPU build under a DFlash drafter of any kind, as it has to be.

One rule: it does what a GPU does. In vLLM 0.32.0 on a CPU `expand_kernel` writes the temperature, top-k and top-p of
each drafted token into a copy that nobody reads, so that a sampled request is verified with numbers that happened to
lie there; a step in which top-k is asked for and nothing was drafted ends the engine; and `rms_norm` takes the first
row of a matrix of weights for all of them, so that context keys of every layer are scaled as those of the first.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model
from vllm.triton_utils.dispatcher import register_kernels
from vllm.utils import cpu_triton_utils
from vllm.v1.sample import rejection_sampler

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"


def expand(
    output_ptr: Tensor,
    input_ptr: Tensor,
    cu_num_tokens_ptr: Tensor,
    replace_from: int,
    replace_to: int,
    MAX_NUM_TOKENS: int,
) -> None:
    """One value a request to one value a drafted token.

    Args:
        output_ptr: (tokens), to be written.
        input_ptr: (B,) values.
        cu_num_tokens_ptr: (B,) drafted tokens of the requests up to each, itself included.
        replace_from, replace_to: a value, and what is written in its place.
        MAX_NUM_TOKENS: of a request; not needed here.
    """
    counts = cu_num_tokens_ptr.diff(prepend=cu_num_tokens_ptr.new_zeros(1))
    values = input_ptr.masked_fill(input_ptr == replace_from, replace_to)
    output_ptr.copy_(values.repeat_interleave(counts))


def mend_sampling() -> None:
    """Put `expand` in the place of vLLM's, now and whenever an engine of this process registers its kernels.

    And let no step without drafted tokens be constrained, for there is nothing to constrain.
    """
    cpu_triton_utils._expand_kernel_impl = expand
    register_kernels({EXPAND: expand})
    constrain = rejection_sampler.apply_sampling_constraints
    if hasattr(constrain, "__wrapped__"):
        return

    @wraps(constrain)
    def constrained(logits: Tensor, cu_num_draft_tokens: Tensor, sampling_metadata: Any) -> Tensor:
        return constrain(logits, cu_num_draft_tokens, sampling_metadata) if len(logits) else logits

    rejection_sampler.apply_sampling_constraints = constrained


class LayersOnCpu(DFlashQwen3Model):
    """vLLM's draft layers, each with its own scale of the context's keys."""

    def _normalize_context_k(self, all_k: Tensor) -> Tensor:
        """Keys (L, tokens, G, D) of all layers, normalised over D."""
        keys = zip(self.layers, all_k, strict=True)
        return torch.stack([layer.self_attn.k_norm(each.contiguous()) for layer, each in keys])
