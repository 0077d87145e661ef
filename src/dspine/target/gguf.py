"""GGUF files, dequantised once and kept as safetensors in the user's cache folder.

One rule: a prepared folder appears whole or not at all. It is written beside its place and renamed; whoever comes
second, or is interrupted, or runs out of space, leaves what was there before.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from dspine.cache_folder import cache_root
from dspine.errors import TargetError
from dspine.target.manifest import damage, sha256_of, write_manifest
from dspine.target.weights import full_model, quiet

# What the readers of transformers raise for bytes that they do not understand.
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, ImportError, RuntimeError, struct.error)
_LEFT_BEHIND_S = 3600  # an unfinished folder that nobody wrote to for so long belongs to nobody any more


def prepared(source: Path, name: str, say: Callable[[str], None]) -> Path:
    """A transformers folder with the dequantised float32 weights of the GGUF file `source`.

    Made at the first call (about 30 s for 135M parameters), then taken from the cache.

    Args:
        name: for messages and the folder's name.
        say: told when something takes long or is done again.

    Raises:
        TargetError: the file cannot be read as a model, or the cache folder cannot be written.
    """
    digest = sha256_of(source)
    folder = cache_root() / "targets" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{digest[:12]}"
    try:
        if folder.exists():
            fault = damage(folder)
            if fault is None:
                return folder
            say(f"the prepared copy of {name} is damaged ({fault}): making it again")
        say(f"preparing {name} (once, about {_seconds(source)} s)")
        _build(source, digest, folder)
    except (OSError, SafetensorError) as error:
        raise _unwritable(error, folder.parent) from error
    return folder


def _build(source: Path, digest: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _convert(source, aside)
        write_manifest(aside, {"file": source.name, "bytes": source.stat().st_size, "sha256": digest})
        _put(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _convert(source: Path, folder: Path) -> None:
    arguments: dict[str, Any] = {"gguf_file": source.name}
    try:
        with quiet(), redirect_stderr(io.StringIO()):  # the bar of the conversion obeys no setting
            model = full_model(source.parent, str(source), dtype=torch.float32, **arguments, **_dequantise())
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **arguments)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except _UNREADABLE as error:
        raise TargetError(
            f"{source} cannot be read as a GGUF language model: {error}",
            "Check that the download is complete; otherwise give the model as a folder or hub id.",
        ) from error


def _dequantise() -> dict[str, Any]:
    # Newer transformers keep GGUF weights quantised, and slow, unless told otherwise; older ones know no such class.
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _put(aside: Path, folder: Path) -> None:
    """Rename `aside` to `folder`, over a damaged one but not over an intact one that came first."""
    if folder.exists():
        if damage(folder) is None:
            return
        old = aside.with_name(f"{aside.name}.old")
        os.replace(folder, old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        os.replace(aside, folder)
    except OSError:
        if damage(folder) is not None:  # not merely another process that was faster
            raise


def _sweep(folder: Path) -> None:
    for left in folder.parent.glob(f".{folder.name}.*"):
        if time.time() - left.stat().st_mtime > _LEFT_BEHIND_S:
            shutil.rmtree(left, ignore_errors=True)


def _seconds(source: Path) -> int:
    return max(1, round(source.stat().st_size / 3.3e6))


def _unwritable(error: Exception, parent: Path) -> TargetError:
    full = getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error)
    what = f"no space left in {parent}" if full else f"cannot write the prepared copy to {parent}: {error}"
    return TargetError(what, "Make room there, or set DSPINE_CACHE to a folder on another disk.")
