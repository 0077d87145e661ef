"""Prompts: read from JSONL, chosen by source, and named by a digest.

One rule: which prompts are chosen depends on their ids and the seed, never on the order of the rows or on
other sources, so that a selection can be repeated on a file that was shuffled. A row has one of three shapes:

    {"id": "a/1", "source": "a", "prompt": "..."}         one user message
    {"messages": [{"role": "user", "content": "..."}]}    a conversation that the target continues
    {"turns": ["...", "..."]}                             user messages; the target answers each in turn
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from dspine.errors import DataError
from dspine.jsonl import json_lines

Message = dict[str, str]
Mix = Sequence[tuple[str, int, str]]  # (source, how many rows, suffix of the last user message)

SHAPES = ("prompt", "messages", "turns")
# What benchmark files carry beside the prompt; read by nobody here.
CARRIED = ("reference", "category", "meta")
KNOWN = ("id", "source", *SHAPES, *CARRIED)


@dataclass(frozen=True)
class Prompt:
    """What the target is to answer.

    Attributes:
        id: unique within its file.
        source: name of the data set that it comes from.
        messages: the conversation so far; the last one is the user's.
        later: further user messages, each asked after the target's own answer to the one before.
    """

    id: str
    source: str
    messages: tuple[Message, ...]
    later: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selection:
    """Disjoint prompts: those to train on, and those to measure on."""

    train: list[Prompt]
    held_out: list[Prompt]


def read_prompts(path: str | Path) -> list[Prompt]:
    """Read a prompt file.

    A row without an id is named after the file and its line (`stem/12`), one without a source after the file.

    Raises:
        DataError: naming file and line; also for two rows of one id and for a file without rows.
    """
    path = Path(path)
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    for number, place, row in json_lines(path):
        prompt = _prompt(row, place, path.stem, number)
        if prompt.id in places:
            raise DataError(f"{place}: id {prompt.id!r} was used before, at {places[prompt.id]}")
        places[prompt.id] = place
        prompts.append(prompt)
    if not prompts:
        fix = 'A row looks like {"id": "a/1", "source": "a", "prompt": "..."}.'
        raise DataError(f"{path} holds no prompts", fix)
    return prompts


def _prompt(row: dict[str, Any], place: str, stem: str, number: int) -> Prompt:
    unknown = sorted(row.keys() - set(KNOWN))
    if unknown:
        raise DataError(f"{place}: unknown key {unknown[0]!r}", f"Known keys: {', '.join(KNOWN)}.")
    shapes = [shape for shape in SHAPES if shape in row]
    if len(shapes) != 1:
        found = " and ".join(shapes) or "none of them"
        raise DataError(f"{place}: a row has exactly one of {', '.join(SHAPES)}; this one has {found}")
    name = _text(row.get("id", f"{stem}/{number}"), "id", place)
    source = _text(row.get("source", stem), "source", place)
    if "prompt" in row:
        asked = [_text(row["prompt"], "prompt", place)]
    elif "turns" in row:
        turns = _filled_list(row["turns"], "turns", place)
        asked = [_text(turn, f"turns[{i}]", place) for i, turn in enumerate(turns)]
    else:
        return Prompt(name, source, _conversation(row["messages"], place))
    return Prompt(name, source, ({"role": "user", "content": asked[0]},), tuple(asked[1:]))


def _conversation(value: Any, place: str) -> tuple[Message, ...]:
    given = _filled_list(value, "messages", place)
    messages = [_message(message, f"messages[{i}]", place) for i, message in enumerate(given)]
    spoken = messages[1:] if messages[0]["role"] == "system" else messages
    for i, message in enumerate(spoken):
        expected = "user" if i % 2 == 0 else "assistant"
        if message["role"] != expected:
            raise DataError(
                f"{place}: messages: {message['role']!r} where {expected!r} should speak",
                "After an optional system message, user and assistant take turns; the user begins.",
            )
    if len(spoken) % 2 == 0:
        raise DataError(
            f"{place}: messages must end with the user's, for the target to answer",
            'Drop the last message, or give the user\'s messages alone as "turns".',
        )
    return tuple(messages)


def _message(value: Any, field: str, place: str) -> Message:
    if not isinstance(value, dict) or value.keys() != {"role", "content"}:
        raise DataError(f'{place}: {field} must be {{"role": ..., "content": ...}}')
    role = value["role"]
    if role not in ("system", "user", "assistant"):
        raise DataError(f"{place}: {field}: role {role!r} is none of system, user, assistant")
    if role == "assistant":  # an empty answer is an answer
        if not isinstance(value["content"], str):
            raise DataError(f"{place}: {field}.content must be a string")
        return {"role": role, "content": value["content"]}
    return {"role": role, "content": _text(value["content"], f"{field}.content", place)}


def _filled_list(value: Any, field: str, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{place}: {field} must be a list that is not empty")
    return value


def _text(value: Any, field: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}: {field} must be a string that is not empty")
    return value


def select(prompts: Sequence[Prompt], mix: Mix, seed: int, held_out: int = 0) -> Selection:
    """Choose prompts by source.

    Of each source the rows are ordered by sha256("seed:id"); the first `count` are for training and the next
    `held_out` are held out, passing over any whose text is among those trained on.

    Args:
        prompts: what `read_prompts` gives.
        mix: (source, count, suffix) each; the suffix is appended to the last user message of either kind.
        seed: of the order.
        held_out: held-out rows per source.

    Raises:
        DataError: a source that is named twice, unknown, or too small.
    """
    by_source: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_source.setdefault(prompt.source, []).append(prompt)
    names = [source for source, _, _ in mix]
    for source in names:
        if source not in by_source:
            known = ", ".join(sorted(by_source))
            raise DataError(f"no prompt has the source {source!r}", f"Sources here: {known}.")
        if names.count(source) > 1:
            raise DataError(f"the mix names the source {source!r} twice", "Add up the counts.")
    ordered = {source: sorted(by_source[source], key=lambda p: _rank(seed, p.id)) for source in names}
    trained = {_asked(p) for source, count, _ in mix for p in ordered[source][:count]}
    train: list[Prompt] = []
    kept_out: list[Prompt] = []
    for source, count, suffix in mix:
        rest = [p for p in ordered[source][count:] if _asked(p) not in trained]
        have = len(ordered[source])
        if have < count or len(rest) < held_out:
            wanted = f"{count} + {held_out} held out"
            raise DataError(f"the source {source!r} has {have} prompts; the mix asks for {wanted}")
        train += [_with_suffix(p, suffix) for p in ordered[source][:count]]
        kept_out += [_with_suffix(p, suffix) for p in rest[:held_out]]
    return Selection(train, kept_out)


def _rank(seed: int, name: str) -> str:
    return sha256(f"{seed}:{name}".encode()).hexdigest()


def _asked(prompt: Prompt) -> tuple[str, ...]:
    """What the user says, case and spacing aside: the same question under two ids is one question."""
    said = [m["content"] for m in prompt.messages if m["role"] == "user"]
    return tuple(" ".join(text.lower().split()) for text in (*said, *prompt.later))


def _with_suffix(prompt: Prompt, suffix: str) -> Prompt:
    if not suffix:
        return prompt
    if prompt.later:
        return replace(prompt, later=(*prompt.later[:-1], prompt.later[-1] + suffix))
    last = prompt.messages[-1]
    return replace(prompt, messages=(*prompt.messages[:-1], {**last, "content": last["content"] + suffix}))


def prompts_digest(prompts: Sequence[Prompt]) -> str:
    """Sha256 of a set of prompts, whatever their order: ids, conversations, later turns."""
    rows = [(p.id, p.messages, p.later) for p in sorted(prompts, key=lambda p: p.id)]
    return sha256(json.dumps(rows, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
