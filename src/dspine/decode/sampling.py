"""What a request asks of the sampler.

One rule: lossless or refused. Every field is honoured exactly by plain and by speculative decoding alike; a
value that cannot be is a `RequestError` that names the field, never ignored and never clamped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Any, Self

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from torch import Tensor

from dspine.decode.noise import SEED_LIMIT
from dspine.decode.policy import Own, read_verify
from dspine.errors import ConfigError, RequestError
from dspine.kernels.law import Law

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""transformers' protocol: `processor(input_ids (1, n) int64, scores (1, V)) -> scores (1, V)`."""


def _listed(value: object) -> object:
    """A single stop string, stop id or processor stands for a list of one."""
    return (value,) if isinstance(value, str | int) or callable(value) else value


def _not_bool(value: object) -> object:
    """`True` is an int to Python; as a number of tokens it is a mistake."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a truth value")
    return value


_Real = Annotated[float, BeforeValidator(_not_bool)]  # every field has bounds, which NaN does not satisfy
_Int = Annotated[int, BeforeValidator(_not_bool)]
_TokenId = Annotated[_Int, Field(ge=0)]
_Seed = Annotated[int, Field(ge=0, lt=SEED_LIMIT), BeforeValidator(_not_bool)]  # bounds within: named as they are
_Bias = Annotated[_Real, Field(ge=-100, le=100)]


class SamplingParams(BaseModel):
    """Sampling parameters of one request; frozen.

    Top-k, top-p and min-p are allowed beside temperature 0 and change nothing there, exactly: the likeliest
    token of a truncated law is the likeliest token.

    Raises:
        RequestError: an unknown name, or a value outside its range; the message lists every such field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature: _Real = Field(0.0, ge=0, le=100)
    """0 is greedy; else the logits are divided by it. Between 0 and 1e-6 float32 overflows: refused."""
    top_k: _Int = Field(0, ge=0)
    """Keep the k likeliest tokens; 0 is off."""
    top_p: _Real = Field(1.0, gt=0, le=1)
    """Keep a token while the likelier ones hold less than this mass; 1 is off."""
    min_p: _Real = Field(0.0, ge=0, le=1)
    """Keep tokens of at least this chance relative to the likeliest; 0 is off."""
    repetition_penalty: _Real = Field(1.0, gt=0, le=100)
    """Divides positive and multiplies negative logits of tokens of prompt and output; 1 is off."""
    presence_penalty: _Real = Field(0.0, ge=-2, le=2)
    """Subtracted once from the logits of tokens of the output."""
    frequency_penalty: _Real = Field(0.0, ge=-2, le=2)
    """Subtracted from a token's logit as often as it occurs in the output."""
    logit_bias: dict[_TokenId, _Bias] = Field(default_factory=dict)
    """Added to the logits of these ids, after the penalties."""
    seed: _Seed | None = None
    """Same seed, same tokens, whatever else is in the batch; None: the engine draws one."""
    max_new_tokens: _Int = Field(256, ge=1)
    """Most tokens to return, EOS included."""
    min_new_tokens: _Int = Field(0, ge=0)
    """No EOS, stop id or stop string ends the request before this many tokens."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)] = ()
    """The text is cut before the first of these strings; one string may be given bare."""
    stop_token_ids: Annotated[tuple[_TokenId, ...], BeforeValidator(_listed)] = ()
    """Ids that end the request beside the model's EOS."""
    ignore_eos: bool = False
    """Go on after EOS; stop ids and stop strings still end the request."""
    logprobs: _Int | None = Field(None, ge=0)
    """Return the chosen token's logprob and the n likeliest tokens'; 0: the chosen one's only; None: nothing."""
    verify: Annotated[int | str | None, BeforeValidator(_not_bool)] = None
    """How many candidates to verify, by a rule of this request's own: "full", a number, or "confidence:C" (up to the
    first candidate of less confidence); None: as the engine does. The output keeps its law with each."""
    processors: Annotated[tuple[LogitsProcessor, ...], BeforeValidator(_listed)] = ()
    """transformers logits processors, applied last and in order. What one returns must depend on its two arguments
    alone: a block asks about several histories in turn, and about some that are rejected afterwards."""

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_clearly(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise RequestError(*_complaint(error, known=list(cls.model_fields))) from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.temperature < 1e-6:
            raise RequestError(
                f"temperature {self.temperature:g} is too small for float32",
                "use 0 for greedy decoding, or at least 1e-6",
            )
        _ = self.own_rule
        if self.min_new_tokens > self.max_new_tokens:
            raise RequestError(
                f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}",
                "raise max_new_tokens or lower min_new_tokens",
            )
        return self

    @property
    def own_rule(self) -> Own | None:
        """What `verify` stands for.

        Raises:
            RequestError: no rule, or one that is not the request's own.
        """
        if self.verify is None:
            return None
        try:
            policy = read_verify(self.verify)
        except ConfigError as error:
            raise RequestError(error.what, error.fix) from error
        if not isinstance(policy, Own):
            raise RequestError(
                f'verify: "{policy}" concerns all requests of a batch, so no request can ask for it',
                'give "full", a number or "confidence:C", or make the engine with it',
            )
        return policy

    @property
    def greedy(self) -> bool:
        """Whether every token is an argmax."""
        return self.temperature == 0

    def keyed(self, name: str) -> Self:
        """The same for the request `name` of a run: where tokens are drawn, its seed is made of the run's (None: 0) and
        its name, so that its answer depends on nothing else of the run."""
        if self.greedy:
            return self
        digest = sha256(f"{self.seed or 0}:{name}".encode()).digest()
        return self.model_copy(update={"seed": int.from_bytes(digest[:8]) % SEED_LIMIT})

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on the tokens so far through a penalty."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def terminators(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Ids that end this request: its stop ids, and the model's `eos_ids` unless they are ignored."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else eos_ids)

    def check(self, vocab_size: int) -> None:
        """Refuse what only the vocabulary can tell: ids outside it, more logprobs than tokens.

        Raises:
            RequestError: naming the field and the ids.
        """
        for name in ("logit_bias", "stop_token_ids"):
            outside = [token for token in getattr(self, name) if token >= vocab_size]
            if outside:
                raise RequestError(
                    f"{name}: ids {outside} are outside the vocabulary of {vocab_size}",
                    "use ids of the target's own tokenizer",
                )
        if (self.logprobs or 0) > vocab_size:
            raise RequestError(f"logprobs: {self.logprobs} is above the vocabulary of {vocab_size}", "ask for fewer")


def law_of(params: Sequence[SamplingParams], device: torch.device | str | None = None) -> Law:
    """The law of a batch, row b that of `params[b]`; the target's rows and the drafter's read the same one."""
    return Law.of(
        temperature=[p.temperature for p in params],
        top_k=[p.top_k for p in params],
        top_p=[p.top_p for p in params],
        min_p=[p.min_p for p in params],
        device=device,
    )


def _complaint(error: ValidationError, known: Sequence[str]) -> tuple[str, str | None]:
    """What is wrong, one line a faulty field, and how to mend it."""
    lines, fix = [], None
    for fault in error.errors(include_url=False):
        name = ".".join(str(part) for part in fault["loc"]) or "sampling parameters"
        if fault["type"] == "extra_forbidden":
            lines.append(f"{name}: no such sampling parameter")
            fix = f"known are {', '.join(known)}"
        else:
            message = fault["msg"].removeprefix("Value error, ")
            lines.append(f"{name}: {message} (given {str(fault['input'])[:80]})")
    return "\n".join(lines), fix
