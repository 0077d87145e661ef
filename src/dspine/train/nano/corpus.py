"""nano's own text: a seeded generator of chat conversations, and held-out prompts for evaluation.

One rule: a conversation is a pure function of (seed, index), and the first user message alone decides by its hash
whether a conversation is for training or held out, so that no seed can ever put a held-out prompt into training.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from typing import Final, TypedDict

from dspine.train.nano.code import code
from dspine.train.nano.dialogue import Turns, dialogue
from dspine.train.nano.stories import story

SOURCES: Final = ("story", "code", "dialogue")
HELD_OUT_SHARE: Final = 10  # one conversation in so many is held out
LONGER_SHARE: Final = 0.12  # this share of the conversations goes on with another subject


class Message(TypedDict):
    """One chat message."""

    role: str
    content: str


class Conversation(TypedDict):
    """A training conversation: it ends with the assistant's answer."""

    id: str
    source: str
    messages: list[Message]


class PromptRow(TypedDict):
    """A prompt as `dspine regenerate` reads it: it ends with a user message."""

    id: str
    source: str
    messages: list[Message]


def held_out(first_user_message: str) -> bool:
    """True when conversations that begin with this message belong to evaluation."""
    digest = hashlib.sha256(first_user_message.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


def conversations(seed: int, count: int) -> Iterator[Conversation]:
    """`count` training conversations, the three sources in turn; the same ones for the same seed."""
    for index in range(count):
        source = SOURCES[index % len(SOURCES)]
        rng, turns = _draw(f"{seed}/train/{index}", source, want_held_out=False)
        while rng.random() < LONGER_SHARE:
            turns = turns + _turns(rng, rng.choice(SOURCES))
        yield {"id": f"nano/{source}/{seed}-{index}", "source": source, "messages": _messages(turns)}


def prompts(seed: int, count: int, *, held: bool = True) -> Iterator[PromptRow]:
    """`count` prompts of one user message each, all different, the three sources in turn.

    `held=True` draws from what training never sees; `held=False` draws prompts for training a drafter.

    Raises:
        ValueError: `count` exceeds what the generator can tell apart (`_draw` gives up on repeats).
    """
    seen: set[str] = set()
    kind = "eval" if held else "prompt"
    for index in range(count):
        source = SOURCES[index % len(SOURCES)]
        for attempt in range(2000):
            _, turns = _draw(f"{seed}/{kind}/{index}/{attempt}", source, want_held_out=held)
            if turns[0][0] not in seen:
                break
        else:
            raise ValueError(f"the generator has no {index + 1} different {source} prompts (held out: {held})")
        seen.add(turns[0][0])
        row_id = f"nano/{kind}/{source}/{seed}-{index}"
        yield {"id": row_id, "source": source, "messages": [{"role": "user", "content": turns[0][0]}]}


def prompt_lines(seed: int, count: int, *, held: bool) -> bytes:
    """Such prompts as the lines of a JSONL file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in prompts(seed, count, held=held)).encode()


def _draw(key: str, source: str, *, want_held_out: bool) -> tuple[random.Random, Turns]:
    """Turns of one source on the wanted side of the split, and the generator after them."""
    rng = random.Random(key)  # a string seed goes through SHA-512, so it does not depend on the process
    while True:
        turns = _turns(rng, source)
        if held_out(turns[0][0]) == want_held_out:
            return rng, turns


def _turns(rng: random.Random, source: str) -> Turns:
    if source == "dialogue":
        return dialogue(rng)
    return [story(rng) if source == "story" else code(rng)]


def _messages(turns: Turns) -> list[Message]:
    return [
        message
        for asked, answered in turns
        for message in (Message(role="user", content=asked), Message(role="assistant", content=answered))
    ]
