"""A request that has been found sound.

One rule: everything that can be refused is refused here, before the request touches a batch, with a message that names
the numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Protocol

from dspine.decode.policy import Drafts, Own, check_policy
from dspine.decode.processors import RowProcessor
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError, RequestError


class Asked(Protocol):
    """What is asked of a target here: ours, or one that another engine has loaded."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def decodable(self) -> int: ...
    @property
    def context_limit(self) -> int: ...
    @property
    def eos_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True)
class Request:
    """A prompt and what to do with it.

    cap: most new tokens: `max_new_tokens`, or what the context leaves.
    terminators: ids that end it.
    seed: keys the draws; None for a greedy request, drawn here for a sampled one that brings none.
    own: its own rule for the number of candidates to verify; None: the engine's.
    processor: makes its processed logits from the target's raw ones.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    cap: int
    terminators: frozenset[int]
    seed: int | None
    processor: RowProcessor
    own: Own | None = None

    @property
    def seeded(self) -> bool:
        """Whether it brought a seed: its result must depend on nothing else."""
        return self.params.seed is not None

    @classmethod
    def checked(
        cls, number: int, prompt: Sequence[int], params: SamplingParams, target: Asked, drafter: Drafts | None = None
    ) -> Request:
        """Make a request for `target`, and for the drafter that will serve it, if any.

        Raises:
            RequestError: the prompt is no list of ids, is empty, too long for the context, or holds ids outside the
                vocabulary; a parameter does not fit the vocabulary or the drafter, or the context cannot hold
                min_new_tokens.
        """
        prompt = _ids(prompt, target)
        _check_prompt(prompt, target)
        params.check(target.vocab_size)
        room = target.context_limit - len(prompt)
        if params.min_new_tokens > room:
            raise RequestError(
                f"min_new_tokens is {params.min_new_tokens}, and after a prompt of {len(prompt)} tokens the context of "
                f"{target.name} has room for {room}",
                "ask for fewer, or shorten the prompt",
            )
        terminators = params.terminators(target.eos_ids)
        return cls(
            id=number,
            prompt=prompt,
            params=params,
            cap=min(params.max_new_tokens, room),
            terminators=terminators,
            seed=_seed(params),
            processor=RowProcessor(params, len(prompt), terminators, target.decodable),
            own=_own(params, drafter),
        )


def _ids(prompt: str | Sequence[int], target: Asked) -> tuple[int, ...]:
    """The prompt's ids, if they are any: text has to be encoded, and a number that is not whole is no id."""
    fix = f"encode it with the tokenizer of {target.name}"
    if isinstance(prompt, str):
        raise RequestError("the prompt is text", fix)
    try:
        return tuple(index(token) for token in prompt)
    except TypeError as error:
        raise RequestError(f"the prompt is no list of token ids: {error}", fix) from error


def _check_prompt(prompt: tuple[int, ...], target: Asked) -> None:
    if not prompt:
        raise RequestError("the prompt is empty", "give at least one token; a chat template or a BOS token adds some")
    if len(prompt) >= target.context_limit:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, the context of {target.name} {target.context_limit} positions: "
            "no room for an answer",
            "shorten the prompt, or use a target with a longer context",
        )
    outside = sorted({token for token in prompt if not 0 <= token < target.vocab_size})
    if outside:
        raise RequestError(
            f"the prompt holds ids {outside[:8]} outside the vocabulary of {target.vocab_size}",
            f"encode it with the tokenizer of {target.name}",
        )


def _own(params: SamplingParams, drafter: Drafts | None) -> Own | None:
    own = params.own_rule
    if own is None:
        return None
    try:
        check_policy(own, drafter)
    except ConfigError as error:
        raise RequestError(error.what, error.fix) from error
    return own


def _seed(params: SamplingParams) -> int | None:
    if params.greedy:
        return None
    return secrets.randbits(63) if params.seed is None else params.seed
