"""The check of requests that SGLang's scheduler makes, with ours behind it.

One rule: a request that is refused comes back at once, as an error (HTTP 400) with the reason; the batch goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.runtime_context import get_spec

from dspine.serve.sglang.limits import NAME, refused_outputs, refused_parameters

VALIDATOR = "sglang.srt.speculative.dflash_utils.validate_dflash_request"


def validate(original: Callable[[Any, bool], str | None], request: Any, enable_overlap: bool) -> str | None:
    """Around SGLang's own check of a request: why it is refused, or None."""
    refusal = original(request, enable_overlap)
    if refusal is None and (get_spec().speculative_algorithm or "").upper() == NAME:
        refusal = refused_parameters(request.sampling_params) or refused_outputs(request)
    return refusal
