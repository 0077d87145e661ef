"""Conversations as token ids, by the target's own chat template.

One rule: a drafter meets at work exactly the rendering that it was trained on, so the template and its thinking flag
are one choice, and `template_digest` is how a checkpoint remembers it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2 import TemplateError

from dspine.errors import RequestError

Message = Mapping[str, Any]


class Speaker(Protocol):
    """What is asked of a target here: ours, or one that another engine has loaded."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def eos_ids(self) -> frozenset[int]: ...


_FLAG = "enable_thinking"


def render(target: Speaker, messages: Sequence[Message], *, thinking: bool = False) -> list[int]:
    """Prompt ids of a conversation, up to where the assistant begins to answer.

    Args:
        messages: `{"role": ..., "content": ...}`, oldest first.
        thinking: let the model think first, where its template has such a flag.

    Raises:
        RequestError: no template, a conversation that it refuses, or thinking where there is no such flag.
    """
    text = _text(target, messages, thinking, prompt=True)
    return _encode(target, text)


def template_digest(target: Speaker, *, thinking: bool = False) -> str | None:
    """sha256 (hex) of the chat template and the thinking flag; None for a target without a template."""
    template = _template(target)
    if template is None:
        return None
    flag = thinking if _FLAG in template else None
    return hashlib.sha256(json.dumps([template, flag]).encode()).hexdigest()


def completion_mask(
    target: Speaker, messages: Sequence[Message], *, thinking: bool = False
) -> tuple[list[int], list[bool]]:
    """Ids of a whole conversation, and which of them the assistant wrote: its answers, each with its end token.

    Raises:
        RequestError: also if the template renders a turn differently once later turns follow (as those do that
            drop old thoughts), since then no single sequence is what the model saw; or if it ends answers with none
            of the target's end tokens.
    """
    whole = _text(target, messages, thinking, prompt=False)
    answers = []
    for index, message in enumerate(messages):
        if message.get("role") == "assistant":
            start = _text(target, messages[:index], thinking, prompt=True)
            end = _text(target, messages[: index + 1], thinking, prompt=False)
            if not (whole.startswith(end) and end.startswith(start)):
                raise RequestError(
                    f"the chat template of {target.name} is not prefix-stable: it renders turn {index + 1} of "
                    f"{len(messages)} differently when it is the prompt, the last turn, or followed by others",
                    "Use single-turn conversations, or let the target write its answers anew: dspine regenerate.",
                )
            answers.append((len(start), len(end)))
    encoded = target.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids: list[int] = encoded["input_ids"]
    mask = [False] * len(ids)
    for first, last in answers:
        _mark(target, ids, encoded["offset_mapping"], first, last, mask)
    return ids, mask


def _mark(
    target: Speaker, ids: list[int], offsets: list[tuple[int, int]], first: int, last: int, mask: list[bool]
) -> None:
    """Set `mask` for the tokens of characters first..last, up to the first end token among them."""
    inside = [place for place, (start, end) in enumerate(offsets) if first <= start and end <= last]
    ends = [place for place in inside if ids[place] in target.eos_ids]
    if not ends:
        raise RequestError(
            f"the chat template of {target.name} ends an answer with none of the end tokens "
            f"{sorted(target.eos_ids)}, so that a trained drafter would never see one",
            "Use the template that belongs to the model.",
        )
    for place in inside:
        if place <= ends[0]:
            mask[place] = True


def _template(target: Speaker) -> str | None:
    named = target.tokenizer.chat_template
    if not named:
        return None
    template: str = target.tokenizer.get_chat_template()
    return template


def _text(target: Speaker, messages: Sequence[Message], thinking: bool, *, prompt: bool) -> str:
    if not messages:
        raise RequestError("the conversation is empty", "Give at least one message.")
    template = _template(target)
    if template is None:
        raise RequestError(
            f"{target.name} has no chat template",
            "Give the prompt as plain text: --raw on the command line, /v1/completions of a server.",
        )
    if thinking and _FLAG not in template:
        raise RequestError(
            f"the chat template of {target.name} has no thinking flag ({_FLAG})", "Ask without thinking."
        )
    flags = {_FLAG: thinking} if _FLAG in template else {}
    try:
        text: str = target.tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=prompt, tokenize=False, **flags
        )
    except (TemplateError, KeyError, TypeError, ValueError) as error:
        roles = ", ".join(str(message.get("role")) for message in messages) or "none"
        raise RequestError(
            f"the chat template of {target.name} refuses this conversation (roles: {roles}): {error}",
            "Most templates want system first if at all, then user and assistant in turn.",
        ) from error
    refuse_broken(text)
    return text


def refuse_broken(text: str) -> None:
    """Refuse text with half characters in it: what Python makes of bytes that are not UTF-8.

    Raises:
        RequestError: naming the first of them.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not Unicode: it holds the half character {error.object[error.start]!a}", "Give it as UTF-8."
        ) from error


def _encode(target: Speaker, text: str) -> list[int]:
    # Not verbose: what is too long is refused or cut by whoever knows the limit, who says so.
    ids: list[int] = target.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids
