"""The drafter that a launch line names: where its files lie, and whether it is one that an engine can serve.

One rule: everything that headers and config.json can tell is checked before the engine loads its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from dspine.checkpoint.detect import DSPINE, method
from dspine.checkpoint.layout import Contents
from dspine.checkpoint.loading import check_tensors
from dspine.checkpoint.opening import Checkpoint, find_drafter, open_checkpoint
from dspine.checkpoint.own import OWN
from dspine.checkpoint.record import CONFIG, read_json
from dspine.checkpoint.specforge import SPECFORGE
from dspine.checkpoint.weights import stored
from dspine.errors import CheckpointError, ServeError

ARCHITECTURE = "DSpineDraftModel"
_FILES = ("*.json", "*.safetensors")
_UNREACHABLE = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError)


def drafter_folder(name: str, revision: str | None) -> Path:
    """The folder of a drafter, downloaded if it is a hub id.

    Raises:
        CheckpointError: no such folder, and nothing of that name on the hub.
    """
    if _is_local(name):
        return find_drafter(Path(name)).resolve()
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except _UNREACHABLE as error:
        raise CheckpointError(
            f"drafter {name!r}: no such folder, and the hub did not give it ({error})",
            "Give the folder of a drafter, or a hub id that can be reached from here.",
        ) from error


def _is_local(name: str) -> bool:
    return Path(name).expanduser().exists() or name.count("/") != 1 or name.startswith((".", "~"))


def open_draft(folder: Path, engine: str, right_command: Callable[[Path, str], str | None]) -> Checkpoint:
    """Read what a drafter says of itself, and every header of its tensors.

    Args:
        engine: name of the engine that is to serve it.
        right_command: how a folder with a drafter of another method is served; None: not by this engine.

    Raises:
        CheckpointError: an incomplete DSpine drafter, or one in a layout of names not known.
        ServeError: a drafter of another method or design, or a layout that the engine cannot read the config of.
    """
    found = method(Contents(folder, read_json(folder), stored(folder)))
    if found != DSPINE:
        raise ServeError(f"{folder} holds a {found} drafter, not a {DSPINE} one", _remedy(found, right_command, folder))
    checkpoint = open_checkpoint(folder)
    if switched := checkpoint.config.dspine.switched:
        raise ServeError(
            f"{folder}: its design was switched ({', '.join(f'{key}={value}' for key, value in switched.items())}), "
            f"and {engine} runs the one of the paper",
            "Evaluate it with `dspine eval`, or train a drafter without switches.",
        )
    if checkpoint.transfer not in (OWN, SPECFORGE):
        raise ServeError(
            f"{folder}: {engine} reads config.json itself, and does not know the {checkpoint.config.layout} layout",
            f"Convert it: dspine export {folder} FOLDER",
        )
    named = read_json(folder).get("architectures")
    if named != [ARCHITECTURE]:
        raise ServeError(
            f"{folder / CONFIG}: architectures is {named!r}, and {engine} chooses the network by it",
            f'Set it to ["{ARCHITECTURE}"].',
        )
    check_tensors(checkpoint)
    return checkpoint


def _remedy(found: str, right_command: Callable[[Path, str], str | None], folder: Path) -> str:
    command = right_command(folder, found)
    if command is None:
        return "Name the folder of a DSpine drafter, or train one: dspine train --help"
    return f"Serve it where {found} runs: {command}\nor train a DSpine drafter: dspine train --help"


def is_dspine(name: str, revision: str | None) -> bool:
    """Whether a folder or hub id holds a DSpine drafter; no if it cannot be read (the engine says so itself)."""
    try:
        if Path(name).is_dir():
            folder = Path(name)
            return method(Contents(folder, read_json(folder), stored(folder))) == DSPINE
        if _is_local(name):
            return False
        folder = Path(hf_hub_download(name, CONFIG, revision=revision)).parent
        return method(Contents(folder, read_json(folder), {})) == DSPINE
    except (CheckpointError, *_UNREACHABLE):
        return False
