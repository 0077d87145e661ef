"""Prompts: read from JSONL, written, and named by a digest.

One rule: a row that says something unknown is refused by file and line. A row has one of three shapes, or is a finished
dialogue of a public data set (`conversations`), whose answers the target gives anew, turn by turn:

    {"id": "a/1", "source": "a", "prompt": "..."}         one user message
    {"messages": [{"role": "user", "content": "..."}]}    a conversation that the target continues
    {"turns": ["...", "..."], "system": "..."}            user messages; the target answers each in turn
    {"conversations": [...]}                              ShareGPT's, with the answers of another model
    {"messages": [..., {"role": "assistant", ...}]}       OpenAI's, ending with an answer
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dspine.errors import DataError
from dspine.jsonl import half_character, json_lines
from dspine.progress import say
from dspine.train.conversations import Unaskable, dialogue, is_dialogue

Message = dict[str, str]

SHAPES = ("prompt", "messages", "turns")
# What benchmark files carry beside the prompt; read by nobody here.
CARRIED = ("reference", "category", "meta")
KNOWN = ("id", "source", "system", *SHAPES, *CARRIED)


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

    @property
    def user_texts(self) -> list[str]:
        """What the user says, every turn."""
        return [message["content"] for message in self.messages if message["role"] == "user"] + list(self.later)


def read_prompts(path: str | Path) -> list[Prompt]:
    """Read a prompt file: JSONL, or one JSON array of rows.

    A row without an id is named after the file and its line (`stem/12`), one without a source after the file. Dialogues
    that cannot be asked turn by turn are left out, and their number is said.

    Raises:
        DataError: naming file and line; also for two rows of one id and for a file without rows.
    """
    path = Path(path)
    prompts: dict[str, Prompt] = {}
    places: dict[str, str] = {}
    left_out: Counter[str] = Counter()
    for number, place, row in _rows(path):
        if is_dialogue(row):
            add_dialogue(row.get("conversations", row.get("messages")), row, path.stem, prompts, left_out)
            continue
        prompt = _prompt(row, place, path.stem, number)
        if prompt.id in prompts:
            first = places.get(prompt.id, "an earlier dialogue")
            raise DataError(f"{place}: id {prompt.id!r} was used before, at {first}")
        places[prompt.id] = place
        prompts[prompt.id] = prompt
    say_left_out(path, left_out)
    if not prompts:
        fix = 'A row looks like {"id": "a/1", "source": "a", "prompt": "..."}.'
        raise DataError(f"{path} holds no prompts", fix)
    return list(prompts.values())


def _rows(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """As `json_lines`, and also of a file that is one JSON array, whose places are "file, row n"."""
    try:
        with path.open("rb") as file:
            array = file.read(64).removeprefix(BOM_UTF8).lstrip()[:1] == b"[" and path.suffix == ".json"
        rows = json.loads(path.read_text(encoding="utf-8-sig")) if array else None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "It must be a JSONL file.") from error
    except ValueError as error:
        raise DataError(f"{path} is not a JSON array: {error}") from error
    if rows is None:
        yield from json_lines(path)
        return
    for number, row in enumerate(rows, start=1):
        place = f"{path}, row {number}"
        if not isinstance(row, dict):
            raise DataError(f"{place}: a {type(row).__name__} where a JSON object should be")
        yield number, place, row


def add_dialogue(
    entries: Any, row: Mapping[str, Any], source: str, prompts: dict[str, Prompt], left_out: Counter[str]
) -> None:
    """Add what the user says in a finished dialogue to the prompts by id, or count why it is left out.

    Args:
        entries: the dialogue. row: what it stands in, which may name it and its source.
    """
    try:
        prompt = _dialogue_prompt(entries, row, source)
    except Unaskable as reason:
        left_out[str(reason)] += 1
        return
    if prompt.id in prompts:
        left_out["id or text was there before"] += 1
    else:
        prompts[prompt.id] = prompt


def _dialogue_prompt(entries: Any, row: Mapping[str, Any], source: str) -> Prompt:
    """The prompt of a finished dialogue; one without an id is named after its text.

    Raises:
        Unaskable: it cannot be asked turn by turn.
    """
    found = dialogue(entries)
    given, own_source = row.get("id"), row.get("source")
    if isinstance(given, bool) or not isinstance(given, str | int) or not _names(str(given)):
        said = json.dumps([found.system, *found.turns], ensure_ascii=False)
        given = f"{source}/{sha256(said.encode()).hexdigest()[:16]}"
    source = own_source if isinstance(own_source, str) and _names(own_source) else source
    return Prompt(str(given), source, _opening(found.system, found.turns[0]), found.turns[1:])


def _names(text: str) -> bool:
    """Whether a row or a data set can go by this name."""
    return bool(text.strip()) and not half_character(text)


def _opening(system: str | None, first: str) -> tuple[Message, ...]:
    user = {"role": "user", "content": first}
    return (user,) if system is None else ({"role": "system", "content": system}, user)


def say_left_out(name: object, left_out: Counter[str]) -> None:
    """Say how many dialogues were left out, and why."""
    if left_out:
        why = "; ".join(f"{reason}: {count}" for reason, count in left_out.most_common())
        say(f"{name}: {left_out.total()} dialogues are left out ({why})")


def prompt_rows(prompts: Iterable[Prompt]) -> bytes:
    """Prompts as the lines of a file that `read_prompts` reads back.

    Raises:
        ValueError: a conversation that has both answers in it and later turns, for which there is no shape.
    """
    return "".join(json.dumps(_as_row(prompt), ensure_ascii=False) + "\n" for prompt in prompts).encode()


def _as_row(prompt: Prompt) -> dict[str, Any]:
    named = {"id": prompt.id, "source": prompt.source}
    if not prompt.later:
        return {**named, "messages": list(prompt.messages)}
    *system, first = prompt.messages
    if [message["role"] for message in system] not in ([], ["system"]):
        raise ValueError(f"prompt {prompt.id!r} has answers before its later turns")
    said = {"system": system[0]["content"]} if system else {}
    return {**named, **said, "turns": [first["content"], *prompt.later]}


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
        if "system" in row:
            raise DataError(f"{place}: a row with messages has its system message among them")
        return Prompt(name, source, _conversation(row["messages"], place))
    system = _text(row["system"], "system", place) if "system" in row else None
    return Prompt(name, source, _opening(system, asked[0]), tuple(asked[1:]))


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
        return {"role": role, "content": _whole(value["content"], f"{field}.content", place)}
    return {"role": role, "content": _text(value["content"], f"{field}.content", place)}


def _filled_list(value: Any, field: str, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{place}: {field} must be a list that is not empty")
    return value


def _text(value: Any, field: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}: {field} must be a string that is not empty")
    return _whole(value, field, place)


def _whole(text: str, field: str, place: str) -> str:
    if half_character(text):
        fix = "Whatever wrote it cut a text in the middle of a character: write the row anew."
        raise DataError(f"{place}: {field} holds half a character (a surrogate alone)", fix)
    return text


def prompts_digest(prompts: Sequence[Prompt]) -> str:
    """Sha256 of a set of prompts, whatever their order: ids, conversations, later turns."""
    rows = [(p.id, p.messages, p.later) for p in sorted(prompts, key=lambda p: p.id)]
    return sha256(json.dumps(rows, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
