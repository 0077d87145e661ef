"""Dialogues of public data sets: ShareGPT rows, and OpenAI `messages` that end with an answer.

One rule: the user's words stay and the assistant's go, for the target gives an answer of its own in every turn. Such
sets are never clean, so a row that cannot be asked turn by turn is left out, with a reason that can be counted.

    {"id": "x", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}
    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspine.jsonl import half_character

ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
}


class Unaskable(Exception):
    """Why a dialogue cannot be asked turn by turn: a few words, the same for every row of that fault."""


@dataclass(frozen=True)
class Dialogue:
    """What a user said in a dialogue: a system message (None: none), and the user's turns."""

    system: str | None
    turns: tuple[str, ...]


def is_dialogue(row: Mapping[str, Any]) -> bool:
    """Whether a row holds a finished dialogue, and not a conversation that waits for its next answer."""
    if "conversations" in row:
        return True
    messages = row.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def dialogue(entries: Any) -> Dialogue:
    """What the user said in a list of ShareGPT's or OpenAI's entries.

    Raises:
        Unaskable: no text, an unknown speaker, or speakers that do not take turns beginning with the user.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise Unaskable("not a list of messages")
    said = [_said(entry) for entry in entries]
    system = said[0][1] if said[0][0] == "system" else None
    spoken = said if system is None else said[1:]
    for index, (role, text) in enumerate(spoken):
        if role != ("user", "assistant")[index % 2]:
            raise Unaskable("begins with the assistant" if index == 0 else "speakers do not take turns")
        if role == "user" and not text.strip():
            raise Unaskable("the user says nothing")
    turns = tuple(text for role, text in spoken if role == "user")
    if not turns:
        raise Unaskable("the user says nothing")
    return Dialogue(system if system and system.strip() else None, turns)


def _said(entry: Any) -> tuple[str, str]:
    """(role, text) of an entry of either kind."""
    if not isinstance(entry, Mapping):
        raise Unaskable("not a list of messages")
    given = entry.get("role", entry.get("from"))
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise Unaskable("another speaker than system, user and assistant")
    if role == "assistant":  # its words are dropped, but what it did decides what the user said next
        if entry.get("tool_calls") or entry.get("function_call"):
            raise Unaskable("the assistant calls a tool")
        return role, ""
    text = _text(entry.get("content", entry.get("value")))
    if half_character(text):
        raise Unaskable("a message with half a character")
    return role, text


def _text(content: Any) -> str:
    """The text of a message: a string, or a list of parts that are all text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise Unaskable("a message that is not text")
    return "".join(str(text) for text in texts)
