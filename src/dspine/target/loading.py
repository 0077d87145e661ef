"""Loading a target by name: built-in, GGUF file, folder, or hub id, in this order.

One rule: what cannot be loaded is refused with what was tried and what to do. Code that a repository brings along
is never run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from dspine.errors import TargetError
from dspine.target import builtin
from dspine.target.anatomy import refuse_config
from dspine.target.gguf import prepared
from dspine.target.model import Target
from dspine.target.rollback import Asked
from dspine.target.weights import full_model, quiet

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# What transformers raises for files that are absent, unreadable, or of a kind that it does not know.
_UNREADABLE = (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError)


def load_target(
    name: str,
    *,
    dtype: torch.dtype | None = None,
    device: str | None = None,
    packed: bool = True,
    rollback: Asked = "auto",
) -> Target:
    """Load a target model, frozen and ready to decode.

    Args:
        name: "smollm2", "nano", a `*.gguf` file, a folder in transformers' layout, or a hub id.
        dtype: of the weights; by default float32 on a CPU, elsewhere what the checkpoint is stored in.
        device: by default "cuda" if there is one, else "cpu".
        packed: see `Target`; False keeps the weights of the linear layers readable.
        rollback: see `Target`; how the states of a hybrid model are brought back.

    Raises:
        TargetError: not found, not readable, of a kind that is not supported, or no such device.
    """
    where = device_named(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    place = place_of(name)
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
            refuse_config(config, name)
            model = full_model(place, name, dtype=dtype or (torch.float32 if where.type == "cpu" else "auto"))
            tokenizer = tokenizer_of(place, name)
        except _UNREADABLE as error:
            raise _unreadable(name, place, error) from error
        return Target(model.to(where), tokenizer, name=name, packed=packed, rollback=rollback)


def device_named(name: str) -> torch.device:
    """The device of a name, which torch can put something on.

    Raises:
        TargetError: there is none here.
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises each of them
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TargetError(f"there is no device {name!r} here: {reason}", "Use cpu, or cuda on a GPU.") from error


def place_of(name: str) -> str | Path:
    """Where transformers finds the files: a folder, or the hub id itself."""
    if name == "smollm2":
        return prepared(builtin.smollm2_file(), name, _say)
    if name == "nano":
        return builtin.shipped("nano") / "target"
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise TargetError(f"there is no file {path}", "Give the path of a GGUF file that exists.")
        return prepared(path.resolve(), path.stem, _say)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise TargetError(
                f"the folder {path} holds no config.json",
                "Give a folder as transformers' save_pretrained writes it, or the path of a .gguf file.",
            )
        return path
    if not _HUB_ID.fullmatch(name):
        raise TargetError(f"there is no folder {path}", _ways())
    return name


def tokenizer_of(place: str | Path, name: str) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    # Without its files some kinds come up empty, silently.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise TargetError(f"{name} holds no tokenizer", "Save the tokenizer beside the weights (tokenizer.json).")
    return tokenizer


def _unreadable(name: str, place: str | Path, error: Any) -> TargetError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "trust_remote_code" in str(error):
        return TargetError(
            f"{name} brings its own model code, which dspine never runs",
            "Use a model whose architecture transformers knows.",
        )
    if isinstance(place, Path):
        return TargetError(
            f"the target {name} cannot be read from {place}: {reason}", "Check that the folder is complete."
        )
    return TargetError(
        f"the target {name!r} is not built in ({', '.join(builtin.NAMES)}), there is no such folder or file here, and "
        f"it could not be had from the Hugging Face hub: {reason}",
        _ways(),
    )


def _ways() -> str:
    return (
        f"Give {' or '.join(builtin.NAMES)}, a folder with config.json and weights, a .gguf file, or a hub id (which "
        "needs the network once, and `hf auth login` if it is gated)."
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
