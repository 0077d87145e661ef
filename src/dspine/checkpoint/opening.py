"""Finding a drafter's folder and reading what it says of itself, without its weights.

One rule: a name is a shipped drafter or a path, never a download; the layout is settled here, and nothing after this
asks which one it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dspine.checkpoint.detect import DSPINE, layout_of, method
from dspine.checkpoint.fields import Fields
from dspine.checkpoint.folder import left_over
from dspine.checkpoint.kinds import kind_in, shapes_of
from dspine.checkpoint.layout import Contents, Layout
from dspine.checkpoint.own import OWN
from dspine.checkpoint.public.choose import normal_form
from dspine.checkpoint.public.normal import Normal
from dspine.checkpoint.public.vocabulary import vocabulary_size
from dspine.checkpoint.record import (
    CONFIG,
    CheckpointConfig,
    VocabularyRecord,
    parse,
    parse_kind,
    read_json,
    record_of,
)
from dspine.checkpoint.schema import Shapes, parameter_shapes
from dspine.checkpoint.split import TRANSFER
from dspine.checkpoint.temperatures import TEMPERATURES
from dspine.checkpoint.vocabulary import VOCABULARY
from dspine.checkpoint.weights import StoredTensor, stored, weight_files
from dspine.drafter.config import DSpineConfig
from dspine.errors import CheckpointError
from dspine.target.builtin import shipped

_DRAFTERS_KEYS = frozenset(
    {"dspine_config", "dflash_config", "drafter_config", "eagle_config", "speculators_config", "draft_vocab_size"}
)

# Name → where the drafter lies in its shipped folder.
SHIPPED = {"smollm2-135m-dspine": ".", "nano": "drafter"}


@dataclass(frozen=True)
class Checkpoint:
    """A drafter on disk: its config, tensor headers by common name, and warnings.

    transfer: how a DSpine drafter's transfer space is stored.
    tables: copies of the target's embedding and head. maps: d2t and t2d of a draft vocabulary in the file.
    absent: trained tensors that are not in the file, and zero.
    """

    config: CheckpointConfig
    tensors: Mapping[str, StoredTensor]
    notes: tuple[str, ...]
    transfer: Layout | None = None
    tables: Mapping[str, StoredTensor] = field(default_factory=dict)
    maps: Mapping[str, StoredTensor] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    @property
    def trained(self) -> Shapes:
        """Shape of every trained tensor of the network."""
        sizes, vocabulary = self.config.drafter, self.config.vocabulary
        if isinstance(sizes, DSpineConfig):
            return parameter_shapes(sizes)
        return shapes_of(sizes, None if vocabulary is None else vocabulary.size)

    @property
    def beside(self) -> Shapes:
        """Shape of every tensor that there must be beside the trained ones."""
        sizes = self.config.drafter
        return self.transfer.transfer(sizes) if isinstance(sizes, DSpineConfig) and self.transfer else {}


def is_drafter(folder: Path) -> bool:
    """Whether a folder's config.json is a drafter's, by what no target's has.

    Raises:
        CheckpointError: there is none that can be read.
    """
    raw = read_json(folder)
    named = raw.get("architectures")
    drafters = ("DSparkModel", "Eagle3Model", "Eagle3", "DraftModel", "Speculator")
    return not _DRAFTERS_KEYS.isdisjoint(raw) or any(str(name).endswith(drafters) for name in named or ())


def find_drafter(name_or_path: str | Path) -> Path:
    """The folder of a shipped drafter or of a path.

    Raises:
        CheckpointError: there is no such folder; the shipped names are listed.
    """
    if isinstance(name_or_path, str) and name_or_path in SHIPPED:
        return shipped(name_or_path) / SHIPPED[name_or_path]
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    if (previous := left_over(folder)) is not None:
        raise CheckpointError(
            f"{folder}: saving was killed while the folder was replaced; the drafter from before lies in {previous}",
            f"Bring it back: mv {previous} {folder}",
        )
    what = "is a file, not a folder" if folder.exists() else "no such folder"
    raise CheckpointError(
        f"drafter {str(name_or_path)!r}: {what}",
        f"Give the folder of a drafter or a shipped name ({', '.join(SHIPPED)}). From the Hugging Face Hub: "
        f"hf download OWNER/NAME --local-dir FOLDER",
    )


def open_checkpoint(folder: Path, target_layers: int | None = None) -> Checkpoint:
    """Read config and tensor headers of a drafter: DSpine's layouts, our own of other kinds, or a public one of those.

    Args:
        target_layers: decoder layers of the target, for files that leave it to the target what they tap; None: it is
            not at hand.

    Raises:
        CheckpointError: none of them, an incomplete or inconsistent one.
    """
    contents = Contents(folder, read_json(folder), stored(folder))
    if (kind := kind_in(contents.raw, folder / CONFIG)) is not None:
        return Checkpoint(parse_kind(contents.raw, folder, OWN.name, kind), contents.tensors, contents.notes)
    if method(contents) != DSPINE:
        return _public(normal_form(contents, target_layers), contents)
    layout = layout_of(contents)
    contents = layout.arrange(contents)
    return Checkpoint(parse(contents.raw, folder, layout.name), contents.tensors, contents.notes, transfer=layout)


def _public(normal: Normal, contents: Contents) -> Checkpoint:
    record = record_of(
        Fields(contents.raw, contents.folder / CONFIG), normal.layout, normal.sizes, dict(normal.unknown)
    )
    size = vocabulary_size(normal.vocabulary, contents.folder) if normal.vocabulary else None
    config = replace(
        record,
        vocabulary=None if size is None else VocabularyRecord(size),
        training={**normal.facts, **record.training},
    )
    return Checkpoint(
        config,
        normal.tensors,
        normal.notes,
        tables=normal.tables,
        maps=normal.vocabulary,
        absent=normal.absent,
    )


def read_config(name_or_path: str | Path) -> CheckpointConfig:
    """What a drafter's folder says of itself; no weights are read.

    Raises:
        CheckpointError: no such folder, or not a drafter that we know.
    """
    return open_checkpoint(find_drafter(name_or_path)).config


def drafter_digest(name_or_path: str | Path) -> str:
    """sha256 (hex) over config, weights and side files: what a report names a drafter by.

    Raises:
        CheckpointError: no such folder, or no weights in it.
    """
    folder = find_drafter(name_or_path)
    digest = hashlib.sha256()
    side = [folder / name for name in (CONFIG, TRANSFER, VOCABULARY, TEMPERATURES) if (folder / name).is_file()]
    for file in sorted([*side, *weight_files(folder)]):
        with file.open("rb") as opened:
            digest.update(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
