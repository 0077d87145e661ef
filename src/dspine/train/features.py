"""The feature store: what the target tells of training sequences, kept on disk for repeated epochs.

One rule: `FeatureStore.load` gives what `online_batch` would compute, so that training does not know which of the
two it is fed by (up to the store's dtype). How it lies on disk is `shards`' business, what the numbers are is
`sequences`'. Source: DSpine (arXiv 2609.36173), training: target features, and the teacher's distribution.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from dspine.durable import alone, cannot_write
from dspine.errors import DataError
from dspine.progress import Meter, say
from dspine.target.model import Target
from dspine.train.responses import ResponseRow, TrainingSequence, responses_digest, training_sequences
from dspine.train.sequences import Encoded, SequenceBatch, collate, encode, online_batch, trainable
from dspine.train.shards import DTYPES, INDEX, Index, Sample, Shard, StoreSettings, plan, write_shard

__all__ = ["FeatureStore", "SequenceBatch", "online_batch", "store_settings", "write_features"]


@dataclass(frozen=True)
class _Place:
    """Where a sample lies: its shard, and its first row among the shard's tokens and among its teachers."""

    shard: Shard
    sample: Sample
    token: int
    teacher: int


class FeatureStore:
    """A complete store, open for reading. Shards are mapped into memory and read where asked.

    Attributes:
        path: its folder.
        settings: what it was made from.
        lengths: tokens of every sample, by id.
        skipped: ids of rows without a sample: a number that is not finite, or nothing to train on.
    """

    def __init__(self, path: Path, index: Index) -> None:
        self.path = path
        self.settings = index.settings
        self.skipped = (*index.empty, *(name for shard in index.shards for name in shard.skipped))
        self._places = {name: place for shard in index.shards for name, place in _places(shard)}
        self.lengths = {name: place.sample.tokens for name, place in self._places.items()}
        self._files: dict[str, Any] = {}

    @classmethod
    def open(cls, path: str | Path) -> FeatureStore:
        """Open the store in folder `path`.

        Raises:
            DataError: no store, one that is not complete, or a shard that is missing or of another size.
        """
        folder = Path(path)
        index = Index.read(folder)
        if len(index.shards) < index.planned:
            raise DataError(
                f"the feature store {folder} is not complete: {len(index.shards)} of {index.planned} shards",
                "Run the command that makes it again: it goes on where it stopped.",
            )
        for shard in index.shards:
            shard.check_size(folder)
        return cls(folder, index)

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Ids of all samples."""
        return tuple(self._places)

    def require(self, settings: StoreSettings) -> None:
        """Refuse the store unless it was made from `settings` (see `store_settings`).

        Raises:
            DataError: naming what differs.
        """
        self.settings.require(settings, self.path)

    def load(self, sample_ids: Sequence[str]) -> SequenceBatch:
        """Read samples as one padded batch on the CPU; features and hidden states as float32.

        Raises:
            DataError: an id that the store does not have, or a shard whose content was altered.
        """
        size = self.settings.hidden_size
        return collate([self._read(name) for name in sample_ids], (len(self.settings.taps) * size, size))

    def stream(self, groups: Iterable[Sequence[str]]) -> Generator[SequenceBatch]:
        """A batch of each group of sample ids, as `load` gives it, read when it is asked for."""
        return (self.load(names) for names in groups)

    def _read(self, name: str) -> Encoded:
        place = self._places.get(name)
        if place is None:
            why = ": it was skipped when the store was made" if name in self.skipped else ""
            raise DataError(f"the feature store {self.path} has no sample {name!r}{why}")
        file = self._file(place.shard)
        tokens = slice(place.token, place.token + place.sample.tokens)
        teachers = slice(place.teacher, place.teacher + place.sample.teachers)
        where = {"ids": tokens, "loss_mask": tokens, "features": tokens, "hidden": teachers, "lse": teachers}
        parts: dict[str, Tensor] = {key: file.get_slice(key)[rows] for key, rows in where.items()}
        return Encoded(name, **parts)

    def _file(self, shard: Shard) -> Any:
        """The open file of a shard; its digest is checked once, before anything is read from it."""
        if shard.file not in self._files:
            shard.check_content(self.path)
            self._files[shard.file] = safe_open(self.path / shard.file, framework="pt")
        return self._files[shard.file]


def _places(shard: Shard) -> Iterator[tuple[str, _Place]]:
    token = teacher = 0
    for sample in shard.samples:
        yield sample.id, _Place(shard, sample, token, teacher)
        token += sample.tokens
        teacher += sample.teachers


def store_settings(
    target: Target,
    rows: Sequence[ResponseRow],
    taps: Sequence[int],
    *,
    dtype: str = "bfloat16",
    max_length: int | None = None,
) -> StoreSettings:
    """What a store made from these arguments says of itself.

    Raises:
        DataError: a dtype that is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise DataError(f"features cannot be stored as {dtype!r}", f"Known: {', '.join(DTYPES)}.")
    return StoreSettings(
        target=target.name,
        head_digest=target.head_digest,
        hidden_size=target.hidden_size,
        taps=list(taps),
        responses=responses_digest(rows),
        max_length=max_length,
        dtype=dtype,
        hidden_dtype=str(target.dtype).removeprefix("torch."),
        joined=len(rows) - len(training_sequences(rows)),
    )


def write_features(
    target: Target,
    rows: Sequence[ResponseRow],
    taps: Sequence[int],
    path: str | Path,
    *,
    dtype: str = "bfloat16",
    max_length: int | None = None,
    max_bytes: int | None = None,
    progress: bool = True,
) -> FeatureStore:
    """Make the feature store of these rows in folder `path`, or go on with one that was begun; then open it.

    Its size is said, and checked against `max_bytes` and the free space, before anything is written.

    Args:
        target: runs the sequences.
        rows: what it was asked and answered.
        taps: layer ids.
        dtype: "float32" or "bfloat16", of the features; hidden states keep the target's dtype, lse is float32.
        max_length: tokens kept of a sequence; None: all.
        max_bytes: most bytes that the store may take; None: no bound but the disk.
        progress: whether size, progress and what was skipped go to standard error.

    Raises:
        DataError: settings other than those of the store that was begun, a damaged shard, too little space, or
            a row that does not fit the target.
        TargetError: taps that the target does not have.
    """
    folder = Path(path)
    settings = store_settings(target, rows, taps, dtype=dtype, max_length=max_length)
    sequences, empty = trainable(target, rows, max_length)
    if not sequences:
        raise DataError(f"none of the {len(rows)} responses has a token to train on within max_length {max_length}")
    shards = plan(settings, sequences)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    fresh = Index(settings, len(shards), empty)
    _, todo = _begun(folder, fresh, shards)
    _check_space(folder, settings, shards, todo, max_bytes, progress)
    if todo:  # else it is only read, as several processes may do at once
        with alone(folder, "the feature store"):
            index, todo = _begun(folder, fresh, shards)
            _write(target, folder, index, shards, todo, progress)
    return FeatureStore.open(folder)


def _begun(folder: Path, fresh: Index, shards: Sequence[object]) -> tuple[Index, list[int]]:
    """The index of a store, as it lies there or `fresh`, and the numbers of the shards to write."""
    index = fresh
    if (folder / INDEX).exists():
        index = Index.read(folder)
        index.settings.require(fresh.settings, folder)
    return index, _unwritten(folder, index, shards)


def _unwritten(folder: Path, index: Index, shards: Sequence[object]) -> list[int]:
    """Numbers of the shards to write: those the index does not name, and those whose file was removed."""
    todo = []
    for number in range(len(shards)):
        if number < len(index.shards) and (folder / index.shards[number].file).exists():
            index.shards[number].check_size(folder)
        else:
            todo.append(number)
    return todo


def _check_space(
    folder: Path,
    settings: StoreSettings,
    shards: Sequence[Sequence[TrainingSequence]],
    todo: Sequence[int],
    max_bytes: int | None,
    progress: bool,
) -> None:
    sizes = [sum(map(settings.bytes_of, shard)) for shard in shards]
    total, needed, free = sum(sizes), sum(sizes[number] for number in todo), shutil.disk_usage(folder).free
    smaller = "Or train on fewer responses, tap fewer layers, or keep none: features.mode=online."
    if max_bytes is not None and total > max_bytes:
        what = (
            f"the feature store {folder} would take {total} bytes ({_gigabytes(total)}), more than the bound of "
            f"{_gigabytes(max_bytes)}"
        )
        raise DataError(what, f"Raise features.max_gigabytes to {ceil(total / 1e7) / 100}. {smaller}")
    if needed > free:
        what = f"the feature store {folder} needs {_gigabytes(needed)} more, the disk has {_gigabytes(free)} left"
        raise DataError(what, f"Free some space. {smaller}")
    if progress and todo:
        tokens, count = sum(len(s.ids) for shard in shards for s in shard), sum(map(len, shards))
        said = f"Features of {count} sequences, {tokens} tokens: {_gigabytes(total)} ({settings.dtype}) in {folder}"
        say(said if needed == total else f"{said}; {_gigabytes(needed)} to write")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _write(
    target: Target,
    folder: Path,
    index: Index,
    shards: Sequence[Sequence[TrainingSequence]],
    todo: Sequence[int],
    progress: bool,
) -> None:
    """Write the shards `todo`, and the index after each."""
    settings = index.settings
    tokens, done = sum(len(s.ids) for number in todo for s in shards[number]), 0
    with Meter("features, tokens", tokens, "tokens", shown=progress) as meter:
        for number in todo:
            kept: list[Encoded] = []
            skipped: list[str] = []
            for encoded in encode(target, shards[number], settings.taps, DTYPES[settings.dtype]):
                if encoded.finite:
                    kept.append(encoded)
                else:
                    skipped.append(encoded.id)
                done += len(encoded.ids)
                meter.update(done, done)
            index.shards[number : number + 1] = [write_shard(folder, number, settings, kept, skipped)]
            index.write(folder)
    if progress and todo:
        _report_skipped(index)


def _report_skipped(index: Index) -> None:
    broken = [name for shard in index.shards for name in shard.skipped]
    for names, why in ((broken, "a number is not finite"), (index.empty, "nothing to train on")):
        if names:
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            say(f"Sequences skipped: {len(names)} ({why}): {shown}")
