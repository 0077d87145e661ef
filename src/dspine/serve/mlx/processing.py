"""What a request does to the target's logits before they become a law: `decode/processors.py` on the device.

One rule: the same order and the same histories, place by place: repetition, frequency and presence penalty, logit bias,
min_new_tokens, ids that the tokenizer cannot decode. A request's own processors speak torch and are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from dspine.decode.request import Request
from dspine.errors import RequestError


def check_processors(request: Request) -> None:
    """Refuse what only the torch engine can honour.

    Raises:
        RequestError: naming the parameter.
    """
    if request.params.processors:
        raise RequestError(
            "processors: logits processors work on torch tensors, and the mlx backend keeps its logits on its device",
            "Decode with the torch engine, or leave them out.",
        )


class Processing:
    """The processing of one request over a vocabulary of `size` ids, of which the first `decodable` have text."""

    def __init__(self, request: Request, size: int, decodable: int) -> None:
        params = request.params
        self._request = request
        self._padding = mx.arange(size) >= decodable if decodable < size else None
        self._bias = _dense(params.logit_bias, size) if params.logit_bias else None
        self._terminators = _dense(dict.fromkeys(request.terminators, 1.0), size) > 0 if request.terminators else None
        self._prompt = _counts(request.prompt, size) > 0 if params.penalised else None

    def __call__(self, logits: mx.array, history: Sequence[int], drafts: mx.array) -> mx.array:
        """Process the places of a block.

        Args:
            logits: (n+1, V) raw logits; row i is the place after the first i candidates.
            history: ids of prompt and output so far, the anchor included.
            drafts: (n,) the candidates.

        Returns:
            (n+1, V); float32 where something was to be done beyond the padding.
        """
        generated = len(history) - len(self._request.prompt)
        if self._request.processor.active(generated):
            logits = logits.astype(mx.float32)
            if self._prompt is not None:
                logits = self._penalised(logits, history, drafts, self._prompt)
            if self._bias is not None:
                logits = logits + self._bias
            early = self._request.params.min_new_tokens - generated
            if early > 0 and self._terminators is not None:
                too_soon = mx.arange(logits.shape[0])[:, None] < early
                logits = mx.where(too_soon & self._terminators, -mx.inf, logits)
        return logits if self._padding is None else mx.where(self._padding, -mx.inf, logits)

    def _penalised(self, logits: mx.array, history: Sequence[int], drafts: mx.array, prompt: mx.array) -> mx.array:
        params, size = self._request.params, logits.shape[-1]
        before = _counts(history[len(self._request.prompt) :], size)[None]  # (1, V)
        drafted = mx.cumsum((drafts[:, None] == mx.arange(size)).astype(mx.float32), axis=0)
        counts = before + mx.pad(drafted, [(1, 0), (0, 0)])  # (n+1, V) occurrences in the output, by place
        occurred = counts > 0
        penalty = params.repetition_penalty
        repeated = mx.where(logits < 0, logits * penalty, logits / penalty)
        logits = mx.where(occurred | prompt, repeated, logits)
        return logits - params.frequency_penalty * counts - params.presence_penalty * occurred


def _counts(tokens: Sequence[int], size: int) -> mx.array:
    """How often each id occurs, (V,) float32."""
    return mx.array(np.bincount(np.array(tokens, dtype=np.int64), minlength=size).astype(np.float32))


def _dense(values: dict[int, float], size: int) -> mx.array:
    """Values by id as a vector, (V,) float32."""
    dense = np.zeros(size, dtype=np.float32)
    dense[list(values)] = list(values.values())
    return mx.array(dense)
