"""The files of a feature store: an index, and shards of sequences laid end to end.

One rule: a store says what it was made from and what each of its files must be, so that another store's part, or an
altered one, is named and never read. `index.json` is replaced after every shard; a shard that it does not name
yet is written anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes

from dspine.durable import write_aside
from dspine.errors import DataError
from dspine.train.responses import TrainingSequence
from dspine.train.sequences import Encoded

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # of the features
HIDDEN_DTYPES = {**DTYPES, "float16": torch.float16, "float64": torch.float64}
FORMAT = "dspine-features-1"
INDEX = "index.json"
SHARD_SEQUENCES = 64
SHARD_BYTES = 256 << 20  # a shard is made in memory


@dataclass(frozen=True)
class StoreSettings:
    """What a store is made from.

    Attributes:
        target: name of the target, for messages; its head and sizes are what counts.
        head_digest: of the target's head.
        hidden_size: d.
        taps: layer ids of the features, in order.
        responses: digest of the response rows.
        max_length: tokens kept of a sequence; None: all.
        dtype: of the features, a key of `DTYPES`.
        hidden_dtype: of the hidden states: the target's own.
        joined: turns of dialogues that lie in the sequence of a later turn.
    """

    target: str
    head_digest: str
    hidden_size: int
    taps: list[int]
    responses: str
    max_length: int | None
    dtype: str
    hidden_dtype: str
    joined: int = 0

    def bytes_of(self, sequence: TrainingSequence) -> int:
        """Bytes of a sequence on disk: ids, mask and features of its tokens, hidden state and lse of its teachers."""
        tokens, teachers = len(sequence.ids), sum(sequence.loss_mask[1:])
        feature, hidden = DTYPES[self.dtype].itemsize, HIDDEN_DTYPES[self.hidden_dtype].itemsize
        width = len(self.taps) * self.hidden_size
        return tokens * (4 + 1 + width * feature) + teachers * (self.hidden_size * hidden + 4)

    def require(self, asked: StoreSettings, folder: Path) -> None:
        """Refuse what this store was not made from.

        Raises:
            DataError: naming each setting that differs.
        """
        mine, others = asdict(self), asdict(asked)
        differing = [
            f"{name}: {mine[name]} → {others[name]}" for name in mine if name != "target" and mine[name] != others[name]
        ]
        if differing:
            raise DataError(
                f"the feature store {folder} was made from something else: {'; '.join(differing)}",
                "Give this run another folder, or remove this one to make it anew.",
            )


@dataclass(frozen=True)
class Sample:
    """One sequence of a shard: `tokens` rows of features, `teachers` rows of hidden states."""

    id: str
    tokens: int
    teachers: int


@dataclass(frozen=True)
class Shard:
    """One file of the store; `skipped` are samples of its plan with a number that is not finite."""

    file: str
    bytes: int
    sha256: str
    samples: list[Sample]
    skipped: list[str]

    def check_size(self, folder: Path) -> None:
        """Refuse a file that is missing or was cut.

        Raises:
            DataError: naming the file.
        """
        path = folder / self.file
        if not path.is_file():
            raise DataError(f"the feature store {folder} lacks its shard {self.file}", _ANEW)
        if path.stat().st_size != self.bytes:
            what = f"{path} is damaged: {path.stat().st_size} bytes where {self.bytes} were written"
            raise DataError(what, f"Remove the file. {_ANEW}")

    def check_content(self, folder: Path) -> None:
        """Refuse a file whose content is not what was written.

        Raises:
            DataError: naming the file.
        """
        self.check_size(folder)
        with (folder / self.file).open("rb") as file:
            # In pieces: a shard may be larger than what memory has left.
            digest = sha256()
            while piece := file.read(1 << 22):
                digest.update(piece)
        if digest.hexdigest() != self.sha256:
            raise DataError(f"{folder / self.file} is damaged: its sha256 is another", f"Remove the file. {_ANEW}")


_ANEW = "Run the command that makes the store again: only this shard is written anew."


@dataclass
class Index:
    """Content of `index.json`.

    Attributes:
        settings: what the store is made from.
        planned: number of shards when it is complete.
        empty: ids of rows without a token to train on within max_length.
        shards: those that are written, in order.
    """

    settings: StoreSettings
    planned: int
    empty: list[str]
    shards: list[Shard] = field(default_factory=list)
    format: str = FORMAT

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Read the index of the store in `folder`.

        Raises:
            DataError: none there, or one that cannot be used.
        """
        path = folder / INDEX
        try:
            given = json.loads(path.read_bytes())
            if given["format"] != FORMAT:
                raise ValueError(f"its format is {given['format']!r}, not {FORMAT!r}")
            shards = [Shard(**{**s, "samples": [Sample(**x) for x in s["samples"]]}) for s in given.pop("shards")]
            return cls(StoreSettings(**given.pop("settings")), shards=shards, **given)
        except OSError as error:
            fix = "Give the folder of a feature store; `dspine train` makes one."
            raise DataError(f"cannot read {path}: {error.strerror}", fix) from error
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} cannot be used: {error}", f"Remove {folder} and make it anew.") from error

    def write(self, folder: Path) -> None:
        """Replace the index in `folder`."""
        write_aside(folder / INDEX, json.dumps(asdict(self), indent=1).encode())


def plan(settings: StoreSettings, sequences: Sequence[TrainingSequence]) -> list[list[TrainingSequence]]:
    """The sequences of each shard: sorted by length, so that those run together pad least."""
    shards: list[list[TrainingSequence]] = []
    held = 0
    for sequence in sorted(sequences, key=lambda s: (len(s.ids), s.id)):
        size = settings.bytes_of(sequence)
        if not shards or len(shards[-1]) == SHARD_SEQUENCES or held + size > SHARD_BYTES:
            shards.append([])
            held = 0
        shards[-1].append(sequence)
        held += size
    return shards


def write_shard(
    folder: Path, number: int, settings: StoreSettings, encoded: Sequence[Encoded], skipped: list[str]
) -> Shard:
    """Write shard `number` and describe it.

    Raises:
        DataError: it cannot be written; nothing is left behind.
    """
    taps, size = len(settings.taps), settings.hidden_size
    # The empty tensors give the shapes where every sample was skipped.
    features = torch.zeros(0, taps * size, dtype=DTYPES[settings.dtype])
    hidden = torch.zeros(0, size, dtype=HIDDEN_DTYPES[settings.hidden_dtype])
    tensors = {
        "ids": torch.cat([torch.zeros(0, dtype=torch.int32), *(e.ids.to("cpu", torch.int32) for e in encoded)]),
        "loss_mask": torch.cat([torch.zeros(0, dtype=torch.bool), *(e.loss_mask.cpu() for e in encoded)]),
        "features": torch.cat([features, *(e.features.cpu() for e in encoded)]),
        "hidden": torch.cat([hidden, *(e.hidden.cpu() for e in encoded)]),
        "lse": torch.cat([torch.zeros(0), *(e.lse.cpu() for e in encoded)]),
    }
    data: bytes = to_bytes(tensors)
    file = f"shard-{number:05d}.safetensors"
    write_aside(folder / file, data)
    samples = [Sample(e.id, len(e.ids), len(e.lse)) for e in encoded]
    return Shard(file, len(data), sha256(data).hexdigest(), samples, skipped)
