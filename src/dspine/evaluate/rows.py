"""A row of a benchmark, and reading rows from a JSONL file.

One rule: a row is text that somebody could have written. Rows of token ids are refused: random tokens lie outside
everything that target and drafter were trained on, and the acceptance on them says nothing of either.

    {"id": "gsm8k/test/3", "turns": ["..."], "reference": ..., "category": "math", "meta": {...}}
    {"prompt": "..."}                                the least that a row of one's own must have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspine.errors import DataError
from dspine.jsonl import half_character, json_lines

KNOWN = ("id", "prompt", "turns", "reference", "category", "meta", "source")
IDS = ("prompt_ids", "token_ids", "input_ids", "prompt_token_ids")
NO_TOKENS = "Acceptance on random tokens says nothing of a drafter: give a named set of prompts, as text."


@dataclass(frozen=True)
class Row:
    """What a benchmark knows of a question.

    id: its name in the set.
    turns: user messages without any wording around them, at least one.
    reference: the set's own answer, in the set's own form; None where it has none.
    category: the set's own.
    meta: what else scoring needs (tests, entry points, final answers).
    """

    id: str
    turns: tuple[str, ...]
    reference: Any = None
    category: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, in its order; a row without an id is named after the file and its line (`stem/12`).

    Raises:
        DataError: naming file and line: no such file, a broken row, token ids, an id that is there twice, or no rows.
    """
    rows: dict[str, Row] = {}
    for number, place, given in json_lines(path):
        row = _row(given, place, f"{path.stem}/{number}")
        if row.id in rows:
            raise DataError(f"{place}: a second row with the id {row.id!r}", "Give each an id of its own.")
        rows[row.id] = row
    if not rows:
        raise DataError(f"{path} holds no rows", 'A row looks like {"id": "a/1", "turns": ["..."]}.')
    return list(rows.values())


def _row(given: Mapping[str, Any], place: str, name: str) -> Row:
    ids = [key for key in IDS if key in given]
    if ids:
        raise DataError(f"{place}: {ids[0]!r} holds token ids", NO_TOKENS)
    unknown = sorted(given.keys() - set(KNOWN))
    if unknown:
        raise DataError(f"{place}: unknown key {unknown[0]!r}", f"Known keys: {', '.join(KNOWN)}.")
    if ("turns" in given) == ("prompt" in given):
        raise DataError(f"{place}: a row has either a prompt or turns")
    turns = given.get("turns", [given.get("prompt")])
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise DataError(f"{place}: turns must be a list of texts that are not empty")
    if any(map(half_character, turns)):
        raise DataError(f"{place}: a text holds half a character (a surrogate alone)", "Write the row anew.")
    meta = given.get("meta") or {}
    if not isinstance(meta, dict):
        raise DataError(f"{place}: meta must be an object")
    own = given.get("id", name)
    if not isinstance(own, str | int) or isinstance(own, bool):
        raise DataError(f"{place}: id must be a text or a whole number")
    return Row(str(own), tuple(turns), given.get("reference"), given.get("category"), meta)
