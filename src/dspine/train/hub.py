"""Prompts from data sets of the hub, or from local ones that the `datasets` library reads.

One rule: a data set is read once and kept as a prompt file of our own, with what it was made from beside it, so that a
run can be repeated after the data set has changed or gone. Its rows hold a prompt (text), turns (a list of texts) or a
dialogue (a list of messages), of which the user's words are kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from dspine.config import DatasetPromptsRecipe
from dspine.durable import cannot_write, write_aside
from dspine.errors import ConfigError, DataError
from dspine.progress import say
from dspine.train.prompts import Prompt, add_dialogue, prompt_rows, say_left_out
from dspine.train.selection import rank

COLUMNS = ("conversations", "messages", "prompt")
FILES = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def build_from_dataset(path: Path, asked: DatasetPromptsRecipe) -> None:
    """Write the prompts of a data set to `path`, where they are not yet.

    Raises:
        ConfigError: the file is there and was not made from this.
        DataError: no such data set, split or column, nothing in it to ask, or no place to write.
    """
    note = path.with_suffix(".source.json")
    if path.exists():
        _refuse_others(path, note, asked)
        return
    prompts, left_out = dataset_prompts(asked)
    say_left_out(asked.name, left_out)
    if not prompts:
        raise DataError(f"the data set {asked.name} has no row that can be asked", "Name another column or split.")
    lines = prompt_rows(prompts)
    made = {"settings": asked.model_dump(), "sha256": sha256(lines).hexdigest(), "left_out": dict(left_out)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    write_aside(note, json.dumps(made, indent=1, ensure_ascii=False).encode())
    write_aside(path, lines)
    say(f"Prompts: {len(prompts)} of {asked.name}, written to {path}")


def _refuse_others(path: Path, note: Path, asked: DatasetPromptsRecipe) -> None:
    fix = "Remove the file, or give another `output`; to use it as it is, leave build.prompts out."
    try:
        made = json.loads(note.read_bytes())
    except (OSError, ValueError):
        raise ConfigError(f"{path} is there, and nothing says that build.prompts made it", fix) from None
    if made.get("settings") != asked.model_dump():
        raise ConfigError(f"{path} was made by other settings than build.prompts has", fix)
    if made.get("sha256") != sha256(path.read_bytes()).hexdigest():
        raise ConfigError(f"{path} was changed since build.prompts made it", fix)


def dataset_prompts(asked: DatasetPromptsRecipe) -> tuple[list[Prompt], Counter[str]]:
    """The prompts of a data set, in the order of their hashes, and how many rows were left out, by reason.

    Raises:
        DataError: no such data set, split or column, or no `datasets` library.
    """
    rows = _load(asked)
    column = asked.column or next((name for name in COLUMNS if name in rows.column_names), None)
    if column is None or column not in rows.column_names:
        found = f"Its columns: {', '.join(rows.column_names)}."
        raise DataError(f"the data set {asked.name} has no column {column or ' or '.join(COLUMNS)}", found)
    source = asked.source or Path(asked.name).stem
    prompts, left_out = _prompts(rows, column, source)
    ordered = sorted(prompts, key=lambda p: rank(asked.seed, p.id))
    kept = None if asked.turns is None else asked.turns - 1
    return [replace(prompt, later=prompt.later[:kept]) for prompt in ordered[: asked.count]], left_out


def _load(asked: DatasetPromptsRecipe) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError("data sets are read by the library `datasets`", "pip install 'dspine[train]'") from error
    path = Path(asked.name)
    try:
        if path.is_file():
            kind = FILES.get(path.suffix)
            if kind is None:
                raise DataError(f"{path} is none of {', '.join(FILES)}")
            return datasets.load_dataset(kind, data_files=str(path), split=asked.split)
        return datasets.load_dataset(asked.name, asked.config, split=asked.split, revision=asked.revision)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"the data set {asked.name} cannot be read: {reason}", "Check name, config and split."
        ) from error


def _prompts(rows: Iterable[Mapping[str, Any]], column: str, source: str) -> tuple[list[Prompt], Counter[str]]:
    prompts: dict[str, Prompt] = {}
    left_out: Counter[str] = Counter()
    for row in rows:
        add_dialogue(_entries(row[column]), {"id": row.get("id")}, source, prompts, left_out)
    return list(prompts.values()), left_out


def _entries(value: Any) -> Any:
    """A cell as a dialogue: a text is one message of the user's, and so is each of a list of texts."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        answered = ({"role": "user", "content": text} for text in value)
        return [entry for user in answered for entry in (user, {"role": "assistant", "content": ""})]
    return value
