"""The target's law of a verification, made by our own definition where SGLang's leaves something out.

One rule: temperature, top-k, top-p and min-p in the order of `kernels.law`; what comes out are logits whose plain
softmax is that law.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspine.kernels.law import Law, law_probs


@dataclass(frozen=True)
class PlainSampling:
    """What SGLang's verification reads of sampling parameters, for rows that have none left."""

    temperatures: Tensor
    need_top_k_sampling: bool = False
    need_top_p_sampling: bool = False
    need_min_p_sampling: bool = False


def folded(logits: Tensor, sampling_info: Any, rows: int) -> tuple[Tensor, PlainSampling]:
    """Fold the sampling parameters of B requests into their logits.

    Args:
        logits: (B·rows, V), `rows` of them a request.
        sampling_info: SGLang's parameters of the B requests; top_k 1 means greedy.

    Returns:
        log p (B·rows, V) float32, and parameters that change nothing.
    """
    top_k = sampling_info.top_ks.view(-1).tolist()
    size = logits.shape[1]
    law = Law.of(
        [0.0 if k <= 1 else t for k, t in zip(top_k, sampling_info.temperatures.view(-1).tolist(), strict=True)],
        [k if k < size else 0 for k in top_k],
        sampling_info.top_ps.view(-1).tolist(),
        sampling_info.min_ps.view(-1).tolist(),
        logits.device,
    )
    probs = law_probs(logits.view(len(top_k), rows, size), law)
    plain = PlainSampling(torch.ones(len(top_k), 1, dtype=torch.float32, device=logits.device))
    return probs.log().view_as(logits), plain
