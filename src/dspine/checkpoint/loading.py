"""From a folder to a network.

One rule: strictly. Every parameter is filled from the file or the load fails, and every check that needs no weights
comes before the first weight is read. Source: DSpine (arXiv 2609.36173); the published schema.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspine.checkpoint.fit import check_fit, warnings_of
from dspine.checkpoint.kinds import build
from dspine.checkpoint.opening import Checkpoint, find_drafter, open_checkpoint
from dspine.checkpoint.public.tables import check_tables
from dspine.checkpoint.public.vocabulary import mapped_ids
from dspine.checkpoint.schema import READY, parameter_shapes, to_module
from dspine.checkpoint.temperatures import TEMPERATURES, read_temperatures
from dspine.checkpoint.vocabulary import read_vocabulary
from dspine.checkpoint.weights import check_dtypes, check_names, read
from dspine.drafter.config import DSpineConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.registry import Network, confidence_head_of
from dspine.errors import CheckpointError

if TYPE_CHECKING:
    from dspine.target.model import Target


class CheckpointWarning(UserWarning):
    """A drafter that loads, but may accept less than it could."""


def load_drafter(
    name_or_path: str | Path,
    target: Target,
    *,
    dtype: torch.dtype | None = None,
    thinking: bool | None = None,
    packed: bool = True,
) -> Network:
    """Load a drafter for a target, of any method and from any layout that we know.

    Args:
        name_or_path: "smollm2-135m-dspine", "nano", or a folder (./nano for one of that name).
        target: the model that it drafts for; embedding and LM head stay the target's.
        dtype: of the trained weights; default: the target's. The transfer space is float32 always.
        thinking: whether prompts will be rendered with thinking on, to warn if the drafter was trained otherwise.
        packed: arrange the weights for the processor's matrix kernels, see `DSpine.pack`; False keeps them readable,
            for training on and for saving.

    Returns:
        the drafter in eval mode, on the target's device.

    Raises:
        CheckpointError: whatever does not fit, with the fix. Warns by `CheckpointWarning`.
    """
    checkpoint = open_checkpoint(find_drafter(name_or_path), target.num_layers)
    check_fit(checkpoint.config, target)
    check_tensors(checkpoint)
    for text in (*checkpoint.notes, *warnings_of(checkpoint.config, target, thinking)):
        warnings.warn(text, CheckpointWarning, stacklevel=2)
    draft_ids = draft_ids_of(checkpoint)
    check_tables(checkpoint.tables, target, draft_ids, checkpoint.config.folder)
    drafter = _build(checkpoint, read_tensors(checkpoint), target, draft_ids, dtype or target.dtype)
    drafter = drafter.to(device=target.device).eval()
    _calibrate(drafter, checkpoint.config.folder)
    if packed:
        drafter.pack()
    return drafter


def check_tensors(checkpoint: Checkpoint) -> None:
    """Judge the headers alone.

    Raises:
        CheckpointError: a tensor is missing, unexpected, quantised or of another shape than config.json asks for.
    """
    config, tensors = checkpoint.config.drafter, checkpoint.tensors
    where = f"{checkpoint.config.folder} (read as the {checkpoint.config.layout} layout)"
    if "fc.weight" in tensors and (width := tensors["fc.weight"].shape[-1]) != config.feature_size:
        raise CheckpointError(
            f"{where}: target_layer_ids names {len(config.target_layer_ids)} layers of {config.hidden_size}, "
            f"{config.feature_size} together, and fc.weight takes in {width}",
            f"List all {width / config.hidden_size:g} layers it was trained with in dflash_config.target_layer_ids.",
        )
    expected = {name: shape for name, shape in checkpoint.trained.items() if name not in checkpoint.absent}
    check_names(tensors, expected | checkpoint.beside, where)
    check_dtypes(tensors.values(), where)


def read_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All tensors by their common names, as they are stored.

    Raises:
        CheckpointError: one that is not finite, or a drafter that was never trained.
    """
    try:
        loaded = read(checkpoint.tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.config.folder}: {error.what}", error.fix) from error
    if READY in loaded and not bool(loaded[READY]):
        raise CheckpointError(
            f"{checkpoint.config.folder}: {READY} is false: this drafter was never trained",
            "Take a checkpoint from after the start of training.",
        )
    shapes = checkpoint.trained
    return loaded | {name: torch.zeros(shapes[name]) for name in checkpoint.absent}


def _calibrate(drafter: Network, folder: Path) -> None:
    """Give the confidence head the temperatures that lie beside the weights."""
    head = confidence_head_of(drafter)
    temperatures = temperatures_of(folder, drafter.candidates, head is not None)
    if head is not None and temperatures is not None:
        head.temperatures = torch.tensor(temperatures, device=head.proj.weight.device)


def temperatures_of(folder: Path, places: int, confident: bool) -> list[float] | None:
    """The temperatures that lie beside the weights of a drafter with M = `places`; None: it was not calibrated.

    Raises:
        CheckpointError: they are there, and the drafter gives no confidences.
    """
    temperatures = read_temperatures(folder, places)
    if temperatures is not None and not confident:
        raise CheckpointError(
            f"{folder / TEMPERATURES} lies there, and this drafter gives no confidences",
            "File and weights are of different drafters: remove the file.",
        )
    return temperatures


def draft_ids_of(checkpoint: Checkpoint) -> Tensor | None:
    if checkpoint.maps:
        return mapped_ids(checkpoint.maps, checkpoint.config.drafter.vocab_size, checkpoint.config.folder)
    return read_vocabulary(checkpoint.config)


def _build(
    checkpoint: Checkpoint, loaded: dict[str, Tensor], target: Target, draft_ids: Tensor | None, dtype: torch.dtype
) -> Network:
    config, head = checkpoint.config.drafter, target.head_weight.detach()  # borrowed: no parameter of the drafter
    if not isinstance(config, DSpineConfig):
        ids = None if draft_ids is None else draft_ids.to(head.device)
        return build(config, loaded, target.embedding, head, ids, dtype)
    assert checkpoint.transfer is not None  # as its sizes are DSpine's
    space = checkpoint.transfer.space(loaded, head)
    with torch.random.fork_rng():  # the first values are overwritten: they may not move the caller's random state
        drafter = DSpine(
            config, target.embedding, head, space, None if draft_ids is None else draft_ids.to(head.device)
        )
    trained = {name: loaded[name].to(dtype) for name in parameter_shapes(config)}
    drafter.load_state_dict(to_module(trained), strict=True, assign=True)
    return drafter
