"""What a request does to the target's logits before they become a law.

One rule: the logits at a place of a block are processed with the history that they would have in plain decoding, the
prompt, the output so far and the candidates before the place. So a block of M + 1 places gives, place by place, what
M + 1 plain steps would give. The order is fixed: repetition, frequency and presence penalty, logit bias,
min_new_tokens, ids that the tokenizer cannot decode, then the request's own processors.

Candidates are judged with these logits, they are not drafted with them: history-dependent processing acts on the
target alone (DSpine, arXiv 2609.36173, section on predecessor-conditioned decoding), which costs acceptance, never
exactness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspine.decode.sampling import SamplingParams
from dspine.errors import RequestError


def mask_undecodable(logits: Tensor, decodable: int) -> None:
    """Set the logits (..., V) of ids from `decodable` on, the padding of a head, to -inf, in place."""
    if decodable < logits.shape[-1]:
        logits[..., decodable:] = -torch.inf


@dataclass(frozen=True)
class Processed:
    """What became of a block's logits.

    scores: (n+1, V) processed logits, float32 or, where the logits are float64, float64.
    places: how many of the first places the request's own processors went through without an exception; all of them
        where `error` is None.
    error: what was raised at the next place: by a processor, or a RequestError where one returned another shape or
        left no token. It ends the request if the output comes to that place, and is nothing if it does not.
    """

    scores: Tensor
    places: int
    error: Exception | None = None


@dataclass(frozen=True)
class RowProcessor:
    """The processing of one request; holds no state of the decoding, so nothing has to be rolled back.

    params: the request's parameters.
    prompt_length: number of prompt tokens at the head of every history.
    terminators: ids that end the request (`SamplingParams.terminators`).
    decodable: ids from here on are padding of the head.
    """

    params: SamplingParams
    prompt_length: int
    terminators: frozenset[int]
    decodable: int

    def active(self, generated: int) -> bool:
        """Whether a round that starts after `generated` output tokens has to be processed at all.

        Where it has not, the logits as they are, with `mask_undecodable`, are the processed ones.
        """
        params = self.params
        return (
            params.penalised
            or bool(params.logit_bias)
            or bool(params.processors)
            or (generated < params.min_new_tokens and bool(self.terminators))
        )

    def __call__(self, logits: Tensor, history: Sequence[int], drafts: Sequence[int]) -> Processed:
        """Process the places of one row's block.

        Places that cannot be reached are left without the request's own processors, because their histories may
        be illegal (a grammar has no state for them): those after a candidate whose processed score is -inf, after a
        candidate that ends the request, and, where the request is greedy, after one that is not the argmax. The verdict
        stops before them whatever they hold. Places that need not be reached (the candidate before them may fall,
        or end the request with a stop string) are processed; what is raised there is kept until the verdict.

        Args:
            logits: (n+1, V) raw logits; row i is the place after the first i candidates. Not changed.
            history: ids of prompt and output so far, the anchor included.
            drafts: the n candidates that will be verified.
        """
        scores = logits.to(dtype=torch.promote_types(logits.dtype, torch.float32), copy=True)
        if self.params.penalised:
            self._penalise(scores, history, drafts)
        if self.params.logit_bias:
            ids = torch.tensor(list(self.params.logit_bias), device=scores.device)
            bias = torch.tensor(list(self.params.logit_bias.values()), dtype=scores.dtype, device=scores.device)
            scores[:, ids] += bias
        early = self.params.min_new_tokens - (len(history) - self.prompt_length)
        if early > 0 and self.terminators:
            scores[:early, sorted(self.terminators)] = -torch.inf
        mask_undecodable(scores, self.decodable)
        if self.params.processors:
            return self._apply_own(scores, history, drafts)
        return Processed(scores, len(scores))

    def _penalise(self, scores: Tensor, history: Sequence[int], drafts: Sequence[int]) -> None:
        """Penalties of every place at once, in place, on the ids that occur and no others."""
        tokens = np.array([*history, *drafts], dtype=np.int64)
        seen, index = np.unique(tokens, return_inverse=True)
        in_output = np.zeros((len(scores), len(seen)), dtype=np.int64)  # occurrences by place and id
        output = index[self.prompt_length : len(history)]
        in_output[0] = np.bincount(output, minlength=len(seen))
        in_output[np.arange(1, len(scores)), index[len(history) :]] = 1
        in_output = in_output.cumsum(axis=0)
        in_prompt = np.bincount(index[: self.prompt_length], minlength=len(seen)) > 0

        ids = torch.from_numpy(seen).to(scores.device)
        counts = torch.from_numpy(in_output).to(scores)
        occurred = counts > 0
        met = occurred | torch.from_numpy(in_prompt).to(scores.device)
        values = scores[:, ids]
        penalty = self.params.repetition_penalty
        values = torch.where(met, torch.where(values < 0, values * penalty, values / penalty), values)
        values -= self.params.frequency_penalty * counts
        values -= self.params.presence_penalty * occurred
        scores[:, ids] = values

    def _apply_own(self, scores: Tensor, history: Sequence[int], drafts: Sequence[int]) -> Processed:
        """The request's processors, place by place while the place can be reached, in place."""
        tokens = torch.tensor([[*history, *drafts]], dtype=torch.int64, device=scores.device)  # (1, n)
        for place in range(len(scores)):
            try:
                best = self._apply_at(scores, place, tokens[:, : len(history) + place])
            except Exception as error:  # noqa: BLE001  a user's code: whatever it raises ends that user's request
                return Processed(scores, place, error)
            if place == len(drafts) or not self._reaches(scores[place], best, drafts[place]):
                break
        return Processed(scores, len(scores))

    def _apply_at(self, scores: Tensor, place: int, history: Tensor) -> int:
        """The request's processors at one place, in place, and the best token (history (1, n) is before it).

        Raises:
            RequestError: a processor returned another shape, or no token is left.
            Exception: what a processor raised.
        """
        row = scores[place : place + 1]
        for processor in self.params.processors:
            row = processor(history, row)
            if not isinstance(row, Tensor) or row.shape != (1, scores.shape[1]):
                raise RequestError(
                    f"processors: {_name(processor)} returned {_shape(row)} for scores (1, {scores.shape[1]})",
                    "return the processed scores in the shape they came in",
                )
        scores[place] = row[0]
        mask_undecodable(scores[place], self.decodable)  # a processor may have written over the padding
        best = int(scores[place].argmax())
        if not bool(scores[place, best].isfinite()):
            raise RequestError(
                "processors: no token with a finite score is left after "
                f"{history.shape[1] - self.prompt_length} new tokens",
                "check the grammar against the stop ids, min_new_tokens and the vocabulary",
            )
        return best

    def _reaches(self, scores: Tensor, best: int, draft: int) -> bool:
        """Whether the place after `draft` can be part of the output, by the processed scores (V,) of its own place."""
        if draft in self.terminators:
            return False
        return draft == best if self.params.greedy else bool(scores[draft] > -torch.inf)


def _name(processor: object) -> str:
    return getattr(processor, "__name__", type(processor).__name__)


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probabilities at T places, of the model as it is: temperature 1, before any processing.

    chosen: (T,) float32, of the tokens that were emitted.
    top_ids: (T, n) int64, the n likeliest, likeliest first.
    top: (T, n) float32, theirs.
    """

    chosen: Tensor
    top_ids: Tensor
    top: Tensor


def token_logprobs(logits: Tensor, ids: Tensor, top_n: int) -> TokenLogprobs:
    """Log probabilities of the emitted tokens and of the likeliest ones.

    Args:
        logits: (T, V) raw logits of the places that emitted a token.
        ids: (T,) int64, the emitted tokens.
        top_n: how many of the likeliest to name, 0..V.
    """
    logits = logits.float()
    total = logits.logsumexp(dim=-1, keepdim=True)  # (T, 1); the log-softmax of all V is not needed
    chosen = (logits.gather(1, ids[:, None]) - total).squeeze(1)
    top, top_ids = logits.topk(top_n, dim=-1)
    return TokenLogprobs(chosen, top_ids, top - total)
