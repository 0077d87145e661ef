"""Reading safetensors files.

One rule: names, shapes and dtypes are judged from the headers, before a single weight is read; nothing is unpickled,
and nothing that is not a plain finite float is taken for a weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspine.checkpoint.schema import READY, Shapes
from dspine.errors import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: where it lies, what it is called there, its safetensors dtype and its shape."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {list(self.shape)}"


def stored(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's model file(s), by name, from the headers alone.

    Raises:
        CheckpointError: no weight file, a pickled one, a shard missing, or a damaged file.
    """
    return {name: tensor for file in weight_files(folder) for name, tensor in stored_in(file).items()}


def weight_files(folder: Path) -> list[Path]:
    """The model file of a folder, or its shards."""
    if (folder / INDEX).is_file():
        shards = sorted({folder / file for file in _shard_names(folder / INDEX)})
        absent = [shard.name for shard in shards if not shard.is_file()]
        if absent:
            raise CheckpointError(
                f"{folder}: {INDEX} names {', '.join(absent)}, which is not there",
                "The copy is incomplete: fetch the missing files.",
            )
        return shards
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{folder}: the weights are pickled ({', '.join(pickled)}), and a pickle can run code when it is opened",
            f"Convert them with safetensors.torch.save_file into {WEIGHTS}, if you trust their source.",
        )
    raise CheckpointError(f"{folder}: no {WEIGHTS}", "Name the folder that holds config.json and the weights.")


def _shard_names(index: Path) -> set[str]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index}: not a safetensors index ({error})", "Fetch the file again.") from error
    outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if outside:
        raise CheckpointError(
            f"{index}: weight_map leads out of the folder ({outside[0]!r})", "Shards lie beside their index."
        )
    return names


def stored_in(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file, by name."""
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
            return {
                name: StoredTensor(file, name, part.get_dtype(), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file}: not a readable safetensors file ({error})", "It is damaged or incomplete: fetch it again."
        ) from error


def check_names(tensors: Mapping[str, StoredTensor], expected: Shapes, where: str) -> None:
    """Hold the tensors of a checkpoint to a layout, strictly.

    Args:
        tensors: what the files hold.
        expected: what the layout asks for.
        where: the folder and the layout that it is believed to follow, for the message.

    Raises:
        CheckpointError: listing every missing and every unexpected name, or every wrong shape.
    """
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unexpected:
        raise CheckpointError(
            f"{where}: the tensors do not fit.\n"
            f"missing ({len(missing)}): {', '.join(missing) or '-'}\n"
            f"unexpected ({len(unexpected)}): {', '.join(unexpected) or '-'}",
            "Fetch the checkpoint again; if it was written in another layout, convert it to this one.",
        )
    wrong = [
        f"{name} is {list(tensors[name].shape)}, config.json asks for {list(shape)}"
        for name, shape in expected.items()
        if tensors[name].shape != shape
    ]
    if wrong:
        raise CheckpointError(
            f"{where}: shapes do not fit: {'; '.join(wrong)}", "Weights and config.json belong to different drafters."
        )


def check_dtypes(tensors: Iterable[StoredTensor], where: str) -> None:
    """Refuse integer and other quantised weights: read as floats they would draft noise without a word."""
    wrong = [str(tensor) for tensor in tensors if tensor.name != READY and tensor.dtype not in _FLOATS]
    if wrong:
        raise CheckpointError(
            f"{where}: quantised weights are not supported in a drafter: {', '.join(wrong)}",
            "Use the unquantised checkpoint (bfloat16, float16 or float32).",
        )


def read(tensors: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """Read tensors, as they are stored.

    Raises:
        CheckpointError: naming every tensor that holds NaN or infinity.
    """
    loaded: dict[str, Tensor] = {}
    for file in sorted({tensor.file for tensor in tensors.values()}):
        with safe_open(file, "pt") as opened:
            for name, tensor in tensors.items():
                if tensor.file == file:
                    loaded[name] = opened.get_tensor(tensor.name)
    poisoned = [name for name, tensor in loaded.items() if not is_finite(tensor)]
    if poisoned:
        raise CheckpointError(
            f"NaN or infinity in {', '.join(poisoned)}",
            "The training run broke down: take an earlier checkpoint of it.",
        )
    return loaded


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity; its extremes show both, in one pass without a copy."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())
