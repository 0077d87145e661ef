"""What a client may ask: the fields of OpenAI's chat completions and completions that are honoured here.

One rule: a field is honoured, or refused by its name. Fields of OpenAI's that this server has no use for pass only with
the value that means "not asked for". Beside OpenAI's fields there are those of the engine, by the names that vLLM and
SGLang use (`extra_body` of the official client).
Source: OpenAI API reference, "Create chat completion" and "Create completion".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dspine.decode.noise import SEED_LIMIT
from dspine.decode.sampling import SamplingParams
from dspine.serve.http.faults import refused
from dspine.serve.http.limits import MAX_BIASES, MAX_STOP_LENGTH, MAX_STOPS, MAX_TOP_LOGPROBS

# OpenAI's fields that are refused, and the values that ask for nothing (None always does).
_UNUSED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
# What the official client hands back with an assistant's message, empty.
_EMPTY_PARTS = ("annotations", "audio", "function_call", "reasoning", "refusal", "tool_calls")


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _message_text(value: object) -> object:
    """Refuse what is no content in words: of a union pydantic names each kind and what it is not."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError('give a text, or a list of {"type": "text", "text": "..."}')
    for number, part in enumerate(value):
        is_text = isinstance(part, dict) and set(part) == {"type", "text"} and part["type"] == "text"
        if not (is_text and isinstance(part["text"], str)):
            raise ValueError(f'part {number} is no {{"type": "text", "text": "..."}}, and text is the only kind')
    return value


def _one_kind(value: object) -> object:
    """Refuse what is no prompt, as `_message_text` does."""
    rows = value if isinstance(value, list) else None
    if isinstance(value, str) or _is_ids(value) or (rows and (_are_texts(rows) or all(map(_is_ids, rows)))):
        return value
    raise ValueError("give a text, a list of token ids, or a list of texts or of such lists")


def _are_texts(rows: list[object]) -> bool:
    return all(isinstance(each, str) for each in rows)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(_Strict):
    """A part of a message; text is the only kind."""

    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | list[TextPart], BeforeValidator(_message_text)]

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if key not in _EMPTY_PARTS or value not in (None, [])}

    def rendered(self) -> dict[str, str]:
        """For the chat template; `developer` is OpenAI's later word for `system`."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(_Strict):
    """How a stream is told."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Asked(_Strict):
    """What chat completions and completions have in common."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]] | None,
        BeforeValidator(_listed),
        Field(max_length=MAX_STOPS),
    ] = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[
        dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None,
        Field(max_length=MAX_BIASES),
    ] = None
    seed: Annotated[int, Field(ge=0, lt=SEED_LIMIT)] | None = None
    user: str | None = None  # names the client's own user, and never had a bearing on the answer
    # The engine's own, beside OpenAI's.
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOPS)] = []
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_unused(cls, data: Any) -> Any:
        """Refuse by name what is OpenAI's and not ours, and take a null for "not given", as OpenAI does."""
        if not isinstance(data, dict):
            return data
        kept: dict[str, Any] = {}
        for name, value in data.items():
            if value is None:
                if name not in _UNUSED and name not in cls.model_fields:
                    kept[name] = value  # an unknown name is refused below, whatever its value
            elif name in _UNUSED and name not in cls.model_fields:
                if value not in _UNUSED[name]:
                    raise refused(f"{name} is not supported by this server", code="unsupported_parameter", param=name)
            else:
                kept[name] = value
        return kept

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options is for streams; set stream to true", param="stream_options")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with an event that counts the tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def params(self, choice: int, max_new_tokens: int, logprobs: int | None) -> SamplingParams:
        """For the choice of that index, 0..: its seed is the request's plus the index, so it can be had alone too.

        Raises:
            RequestError: values that do not go together.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            seed=None if self.seed is None else (self.seed + choice) % SEED_LIMIT,
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
        )


class ChatRequest(Asked):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None  # OpenAI's older word
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise refused("max_tokens and max_completion_tokens say different things", param="max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs is for logprobs; set logprobs to true", param="top_logprobs")
        return self

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def length_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens to name; None: no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Asked):
    """POST /v1/completions. `prompt` is a text, a list of token ids, or a list of either."""

    prompt: Annotated[str | list[int] | list[str] | list[list[int]], BeforeValidator(_one_kind)]
    max_tokens: Annotated[int, Field(ge=1)] = 16  # OpenAI's default
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and all(isinstance(token, int) for token in self.prompt):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]

    @property
    def length(self) -> int:
        return self.max_tokens

    @property
    def length_field(self) -> str:
        return "max_tokens"

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens to name; None: no logprobs at all."""
        return self.logprobs
