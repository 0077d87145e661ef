"""Responses: the rows that the target answered, on disk as JSONL under a head that says how they were made.

One rule: a file holds whole rows of one setting. A line that a kill cut off is removed before the next row is
written, and rows made under other settings are never added.

The head: {"format": "dspine-responses/1", "settings": {...}}. A row: {"id", "source", "messages", "prompt_ids",
"response_ids", "finish_reason"}; `response_ids` ends with the end token when the finish reason is "stop". Rows of
another origin may come without a head.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from dspine.durable import LineFile
from dspine.errors import DataError
from dspine.jsonl import json_lines
from dspine.train.prompts import Message

FORMAT = "dspine-responses/1"
FINISHES = ("stop", "length")
_HEAD = b'{"format"'  # how a head begins


@dataclass(frozen=True)
class ResponseRow:
    """One answer of the target: what it was asked (as text and as ids) and what it said (ids)."""

    id: str
    source: str
    messages: list[Message]
    prompt_ids: list[int]
    response_ids: list[int]
    finish_reason: str


@dataclass(frozen=True)
class TrainingSequence:
    """A prompt and what was answered as one sequence; `loss_mask` is True on responses, their end tokens included."""

    id: str
    ids: list[int]
    loss_mask: list[bool]


@dataclass(frozen=True)
class ResponseMeta:
    """The settings that the rows of a file share.

    Attributes:
        target, dtype: which model answered, computing in what; a server does not say in what ("as served").
        head_digest, template_digest: of the target's head, and of its chat template with the thinking flag.
        thinking: that flag.
        server: the model by the name that a server knows it by; None: it was answered here.
        sampling: the sampling parameters by name.
        max_new_tokens: cap of an answer.
        prompts_digest: of the prompt set.
    """

    target: str
    dtype: str
    head_digest: str
    template_digest: str
    sampling: dict[str, Any]
    max_new_tokens: int
    prompts_digest: str
    thinking: bool = False
    server: str | None = None

    def differing(self, asked: ResponseMeta) -> dict[str, str]:
        """The settings that are not as asked, "name: as it is → as asked", by name; of a section what differs in it."""
        # Through JSON, which has no tuples and no numbers as keys.
        ours, theirs = json.loads(json.dumps([asdict(self), asdict(asked)]))
        return {name: _change(name, ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}


def _change(name: str, ours: Any, theirs: Any) -> str:
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return f"{name}: {ours!r} → {theirs!r}"
    keys = dict.fromkeys([*ours, *theirs])
    parts = [_change(f"{name}.{k}", ours.get(k), theirs.get(k)) for k in keys if ours.get(k) != theirs.get(k)]
    return "; ".join(parts)


def read_responses(path: str | Path) -> list[ResponseRow]:
    """Read a response file.

    Raises:
        DataError: naming file and line: not JSON, a missing, unknown or ill-typed field, two rows of one id,
            a cut-off last line; also for a file without rows.
    """
    rows: list[ResponseRow] = []
    places: dict[str, str] = {}
    for number, place, given in json_lines(Path(path)):
        if number == 1 and "format" in given:
            continue
        row = _row(given, place)
        if row.id in places:
            raise DataError(f"{place}: id {row.id!r} was used before, at {places[row.id]}")
        places[row.id] = place
        rows.append(row)
    if not rows:
        raise DataError(f"{path} holds no responses", "Write them with `dspine regenerate`.")
    return rows


def _row(given: dict[str, Any], place: str) -> ResponseRow:
    known = [field.name for field in fields(ResponseRow)]
    for wrong, names in (
        ("is missing", set(known) - given.keys()),
        ("is unknown", given.keys() - set(known)),
    ):
        if names:
            raise DataError(f"{place}: the field {min(names)!r} {wrong}", f"A row has: {', '.join(known)}.")
    checks: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
        ("id", "a string that is not empty", lambda value: isinstance(value, str) and value != ""),
        ("source", "a string", lambda value: isinstance(value, str)),
        ("messages", "a list of {role, content}", _are_messages),
        ("prompt_ids", "a list of token ids that is not empty", _are_ids),
        ("response_ids", "a list of token ids that is not empty", _are_ids),
        ("finish_reason", " or ".join(FINISHES), lambda value: value in FINISHES),
    )
    for name, kind, holds in checks:
        if not holds(given[name]):
            raise DataError(f"{place}: {name} must be {kind}")
    return ResponseRow(**given)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(i) is int and i >= 0 for i in value)


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(m, dict) and m.keys() == {"role", "content"} and all(isinstance(text, str) for text in m.values())
        for m in value
    )


def training_sequence(
    row: ResponseRow, max_length: int | None = None, earlier: Sequence[ResponseRow] = ()
) -> TrainingSequence:
    """Prompt and response as one sequence, the loss mask set on every response id, its end token included.

    What lies beyond `max_length` tokens is cut off (None: nothing is).

    Args:
        earlier: turns that the row's prompt holds as they were, whose responses are trained on too.
    """
    ids = row.prompt_ids + row.response_ids
    mask = [False] * len(ids)
    for turn in (*earlier, row):
        first, size = len(turn.prompt_ids), len(turn.response_ids)
        mask[first : first + size] = [True] * size
    return TrainingSequence(row.id, ids[:max_length], mask[:max_length])


def training_sequences(rows: Sequence[ResponseRow], max_length: int | None = None) -> list[TrainingSequence]:
    """One sequence for every dialogue, named by its last turn, with the loss mask on the response of every turn.

    A turn (`x#3`) goes on from the one before (`x#2`) where its prompt begins with that turn's prompt and response, id
    for id. It does not where the chat template writes earlier turns anew (as those do that drop old thoughts), or where
    an answer's text makes other ids; then it is a sequence of its own, since no single one is what the target saw.
    """
    by_id = {row.id: row for row in rows}
    goes_on_from = {row.id: before for row in rows if (before := _gone_on_from(row, by_id)) is not None}
    inner = {before.id for before in goes_on_from.values()}
    sequences = []
    for row in rows:
        if row.id not in inner:
            earlier: list[ResponseRow] = []
            while (before := goes_on_from.get((earlier[-1] if earlier else row).id)) is not None:
                earlier.append(before)
            sequences.append(training_sequence(row, max_length, earlier))
    return sequences


def _gone_on_from(row: ResponseRow, by_id: Mapping[str, ResponseRow]) -> ResponseRow | None:
    """The turn before a row, where the row's prompt holds it as it was."""
    name, mark, turn = row.id.rpartition("#")
    if not (mark and turn.isascii() and turn.isdigit() and int(turn) > 1):
        return None
    before = by_id.get(name if turn == "2" else f"{name}#{int(turn) - 1}")
    if before is None:
        return None
    said = before.prompt_ids + before.response_ids
    return before if row.prompt_ids[: len(said)] == said else None


def responses_digest(rows: Sequence[ResponseRow]) -> str:
    """Sha256 of a set of responses, whatever their order: ids of rows, prompts and responses."""
    keyed = sorted((row.id, row.prompt_ids, row.response_ids) for row in rows)
    return sha256(json.dumps(keyed).encode()).hexdigest()


def begun(path: str | Path) -> bool:
    """Whether there is such a file, with at least one whole row in it: a head alone binds nobody."""
    try:
        with Path(path).open("rb") as file:
            first, second = file.readline(), file.readline()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "It must be a JSONL file.") from error
    return (second if first.startswith(_HEAD) else first).endswith(b"\n")


def is_whole(path: Path) -> bool:
    """Whether a file ends with a whole line, or has none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")


def read_meta(path: str | Path) -> ResponseMeta | None:
    """The settings at the head of the response file `path`; None for rows without a head.

    Raises:
        DataError: the file cannot be read, or its head is not that of a response file.
    """
    for _, place, given in json_lines(Path(path)):
        if "format" not in given:
            return None
        if given["format"] != FORMAT:
            raise DataError(f"{place}: the format is {given['format']!r}, not {FORMAT!r}", "Give a response file.")
        try:
            return ResponseMeta(**given["settings"])
        except (KeyError, TypeError) as error:
            raise DataError(f"{place} does not hold the settings of a response file: {error}") from error
    return None


class ResponseWriter:
    """Appends rows to a response file; a context manager.

    Opening an existing file removes a half-written last line and reads what is there: `rows` by id.

    Raises:
        DataError: the file was written under other settings (their names are given) or has no head, or another
            process is writing it.
    """

    def __init__(self, path: str | Path, meta: ResponseMeta) -> None:
        self.path = Path(path)
        self.rows: dict[str, ResponseRow] = {}
        self._lines = LineFile(self.path)
        try:
            self._resume(meta)
        except BaseException:
            self._lines.close()
            raise

    def __enter__(self) -> ResponseWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def append(self, row: ResponseRow) -> None:
        """Add one row; it is wholly in the file when this returns, and not at all when it raises."""
        self._lines.append(asdict(row))
        self.rows[row.id] = row

    def _resume(self, meta: ResponseMeta) -> None:
        found = read_meta(self.path) if self._lines.whole else None
        if self._lines.whole and found is None:
            raise DataError(f"{self.path} does not say how its rows were made", "Give this run another file.")
        if found is None or self.path.read_bytes().count(b"\n") == 1:  # a head alone binds nobody
            self._lines.clear()
            self._lines.append({"format": FORMAT, "settings": asdict(meta)})
            return
        if differing := found.differing(meta):
            raise DataError(
                f"{self.path} was written under other settings: {'; '.join(differing.values())}",
                "Use the same settings to go on, or give this run another file.",
            )
        self._lines.trim()
        self.rows = {row.id: row for row in read_responses(self.path)}
