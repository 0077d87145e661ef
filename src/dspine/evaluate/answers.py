"""Measured answers on disk: one JSON line a request, under a head that says how they were made.

One rule: a file holds whole lines of one setting. A line that a kill cut off is removed before the next is written,
and answers under other settings are refused by name.

The head: {"format": "dspine-answers/2", "settings": {...}, "about": {...}}: an answer depends on the settings, and is
what it is whatever the rest says (versions, machine, batch). An answer: {"id", "task", "prompt", "tokens", "text",
"finish", "rounds": [[proposed, accepted, kept], ...], "seed"}; a round with a tree has its nodes behind. From the
rounds every published definition can be recomputed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from dspine.decode.records import RoundRecord
from dspine.durable import LineFile
from dspine.errors import DataError

FORMAT = "dspine-answers/2"
_HEAD = f'{{"format": "{FORMAT}"'


@dataclass(frozen=True)
class AnswerRecord:
    """One measured answer.

    id, task: of its prompt; the id of a later turn has "#2" behind it.
    prompt: `prompt_digest` of the prompt's ids.
    tokens: generated ids; the first is the prefill's, an end token is the last.
    text: their text, without special tokens.
    finish: "stop" or "length".
    seed: what a sampled answer was drawn with; None for a greedy one.
    """

    id: str
    task: str
    prompt: str
    tokens: tuple[int, ...]
    text: str
    finish: str
    rounds: tuple[RoundRecord, ...]
    seed: int | None = None


def prompt_digest(ids: Sequence[int]) -> str:
    """First 16 hex digits of the sha256 of token ids."""
    return sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


def read_answers(path: str | Path) -> tuple[dict[str, Any], dict[str, AnswerRecord]]:
    """The settings of a file, and its answers by id.

    Raises:
        DataError: naming file and line: not such a file, a broken line, two answers of one id, or rounds that do not
            make up the tokens.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "Give a file that a measurement wrote.") from error
    head = _parsed(lines[0])
    if head is None or head.get("format") != FORMAT or not isinstance(head.get("settings"), dict):
        raise DataError(f"{path} is not a file of measured answers ({FORMAT})", "Give this measurement another file.")
    answers: dict[str, AnswerRecord] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        answer = _answer(line, f"{path}, line {number}")
        if answer.id in answers:
            raise DataError(f"{path}, line {number}: a second answer to {answer.id!r}", "Remove one of the two lines.")
        answers[answer.id] = answer
    return head["settings"], answers


class AnswerFile:
    """Appends answers to a file, made if it is not there; a context manager.

    Args:
        settings: what the answers depend on.
        about: what else a reader may want to know; written with the head of a new file, never compared.

    Attributes:
        answers: what the file holds, by id.

    Raises:
        DataError: the file was made under other settings (they are listed), is something else, cannot be written, or
            another process is writing it.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self._about = dict(about or {})
        self.answers: dict[str, AnswerRecord] = {}
        self._lines = LineFile(self.path)
        try:
            self._resume(dict(settings))
        except BaseException:
            self._lines.close()
            raise

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def append(self, answer: AnswerRecord) -> None:
        """Add one answer; it is wholly in the file when this returns, and not at all when it raises."""
        rounds = [_numbers(record) for record in answer.rounds]
        self._lines.append({**vars(answer), "tokens": list(answer.tokens), "rounds": rounds})
        self.answers[answer.id] = answer

    def _resume(self, settings: dict[str, Any]) -> None:
        data, head = self.path.read_bytes(), _HEAD.encode()
        if data and data[: len(head)] != head[: len(data)]:
            fix = "Give this measurement another file."
            raise DataError(f"{self.path} is not a file of measured answers ({FORMAT})", fix)
        self._lines.trim()
        if not self._lines.whole:
            self._lines.append({"format": FORMAT, "settings": settings, "about": self._about})
            return
        written, self.answers = read_answers(self.path)
        _compare(self.path, written, json.loads(json.dumps(settings)))


def _compare(path: Path, written: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    names = sorted(written.keys() | asked.keys())
    differing = [f"{n}: {written.get(n)!r} → {asked.get(n)!r}" for n in names if written.get(n) != asked.get(n)]
    if differing:
        raise DataError(
            f"{path} was made under other settings: {'; '.join(differing)}",
            "Use the same settings to go on, or give this measurement another folder (--out).",
        )


def _numbers(record: RoundRecord) -> list[int]:
    """A round for the file: as many numbers as say something."""
    further = [record.nodes, int(record.looked_up)]
    while further and not further[-1]:
        further.pop()
    return [record.proposed, record.accepted, record.kept, *further]


def _round(proposed: int, accepted: int, kept: int, nodes: int = 0, looked_up: int = 0) -> RoundRecord:
    return RoundRecord(proposed, accepted, kept, nodes, looked_up == 1)


def _answer(line: bytes, place: str) -> AnswerRecord:
    given = _parsed(line)
    try:
        if given is None:
            raise ValueError("not a JSON object")
        rounds = tuple(_round(*numbers) for numbers in given.pop("rounds"))
        answer = AnswerRecord(**{**given, "tokens": tuple(given["tokens"])}, rounds=rounds)
        if len(answer.tokens) != 1 + sum(record.kept for record in rounds):
            raise ValueError("its rounds do not make up its tokens")
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{place} holds no measured answer: {error}", "Remove the line; it is measured again."
        ) from error
    return answer


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
