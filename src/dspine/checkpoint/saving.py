"""From a network to a folder.

One rule: what is saved can be loaded anywhere the schema is known, by us and by SpecForge, and says for which target
it was made; the folder is the old one or the new one, never a half of either. Source: the published schema of DSpine
(arXiv 2609.36173) drafters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dspine import __version__
from dspine.checkpoint import own, specforge, switches
from dspine.checkpoint.folder import replacing
from dspine.checkpoint.keys import FORMAT, OBJECTIVE
from dspine.checkpoint.kinds import config_json
from dspine.checkpoint.layout import Layout
from dspine.checkpoint.public.decoder import decoder_json
from dspine.checkpoint.record import CONFIG, FORMAT_VERSION, VocabularyRecord
from dspine.checkpoint.schema import file_name, parameter_shapes
from dspine.checkpoint.split import TRANSFER
from dspine.checkpoint.temperatures import TEMPERATURES
from dspine.checkpoint.vocabulary import VOCABULARY, write_vocabulary
from dspine.checkpoint.weights import INDEX, WEIGHTS, is_finite
from dspine.drafter.dspine import DSpine
from dspine.drafter.registry import Network, kind_of
from dspine.errors import CheckpointError
from dspine.kernels.packed import PackedLinear
from dspine.target.chat import template_digest

if TYPE_CHECKING:
    from dspine.target.model import Target

_OURS = frozenset({CONFIG, WEIGHTS, INDEX, TRANSFER, VOCABULARY, TEMPERATURES})
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_DTYPES = (torch.bfloat16, torch.float32)


def save_drafter(
    drafter: Network,
    folder: str | Path,
    *,
    target: Target,
    training: Mapping[str, Any],
    thinking: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Save a drafter in our own layout (a DSpine one without the basis of its transfer space: in SpecForge's).

    Args:
        folder: replaced as a whole if it exists and holds a drafter; other files in it (a model card) stay.
        training: facts of the run, JSON values: steps, warmup_steps, replacement_layers, prompts, sources, the weights
            of the objective.
        thinking: whether the responses it was trained on were made with thinking on.
        dtype: of the trained weights, bfloat16 or float32; the transfer space is float32 always.
        extra: further keys for config.json, dotted (what `CheckpointConfig.unknown` gave).

    Raises:
        CheckpointError: NaN in the weights, or the folder cannot be written; then nothing is changed.
    """
    layout = own.OWN
    if isinstance(drafter, DSpine) and not specforge.basis_is_known(drafter.space):
        layout = specforge.SPECFORGE
    _save(drafter, Path(folder), layout, target, training, thinking, dtype, extra)


def export_specforge(
    drafter: DSpine,
    folder: str | Path,
    target: Target,
    *,
    training: Mapping[str, Any] | None = None,
    thinking: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Save a drafter in SpecForge's layout, with the codes of the whole vocabulary. Arguments as in `save_drafter`."""
    _save(drafter, Path(folder), specforge.SPECFORGE, target, training or {}, thinking, dtype, extra)


def _save(
    drafter: Network,
    folder: Path,
    layout: Layout,
    target: Target,
    training: Mapping[str, Any],
    thinking: bool,
    dtype: torch.dtype,
    extra: Mapping[str, Any] | None,
) -> None:
    if isinstance(drafter, DSpine) and layout is specforge.SPECFORGE:
        switches.refuse_switched(drafter.config, layout.name)
    _check_replaceable(folder)
    tensors = trained_tensors(drafter, dtype)
    if isinstance(drafter, DSpine):
        transfer = own.transfer_tensors if layout is own.OWN else specforge.transfer_tensors
        tensors |= {name: tensor.cpu().contiguous() for name, tensor in transfer(drafter.space).items()}
        config = _config(drafter, layout, target, training, thinking, dtype)
    else:
        config = config_json(drafter) | {FORMAT: format_section(layout.name, target, training, thinking)}
        config[FORMAT]["kind"] = kind_of(drafter)
    write_folder(folder, config, tensors, drafter.draft_ids, extra or {})


def write_folder(
    folder: Path,
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    draft_ids: Tensor | None,
    extra: Mapping[str, Any],
) -> None:
    """Replace a folder by a drafter's files.

    Args:
        draft_ids: of a draft vocabulary that goes into a side file; None: the whole, or it is among the tensors.
        extra: further keys of the config, dotted.

    Raises:
        CheckpointError: the folder holds other things, or cannot be written; then nothing is changed.
    """
    _check_replaceable(folder)
    with replacing(folder, _is_ours) as fresh:
        if draft_ids is not None:
            record = write_vocabulary(draft_ids, fresh)
            config[FORMAT]["draft_vocabulary"] = _vocabulary_section(record)
        save_file(dict(tensors), fresh / WEIGHTS, metadata={"format": "pt"})
        (fresh / CONFIG).write_text(_as_json(_with_extra(config, extra)), encoding="utf-8")


def _is_ours(name: str) -> bool:
    return name in _OURS or _SHARD.fullmatch(name) is not None


def _check_replaceable(folder: Path) -> None:
    """Refuse to put a drafter in the place of something that is not one."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file", "Name a folder to save the drafter in.")
    if any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"{folder} holds other things than a drafter, and saving replaces the folder",
            "Name a new or an empty folder.",
        )


def trained_tensors(drafter: Network, dtype: torch.dtype) -> dict[str, Tensor]:
    """A drafter's own weights by their names in a file, in one number format.

    Raises:
        CheckpointError: NaN among them, a drafter whose layers are packed, or a format that no layout is written in.
    """
    if any(isinstance(module, PackedLinear) for module in drafter.modules()):
        raise CheckpointError(
            "not saved: the layers of this drafter are packed for decoding, which cannot be undone",
            "Load it with load_drafter(..., packed=False).",
        )
    if dtype not in _DTYPES:
        raise CheckpointError(f"a drafter is saved in bfloat16 or float32, not {dtype}", "Choose one of the two.")
    state = {file_name(name): tensor for name, tensor in drafter.state_dict().items()}
    names = parameter_shapes(drafter.config) if isinstance(drafter, DSpine) else state
    trained = {name: state[name].detach() for name in names}
    poisoned = [name for name, tensor in trained.items() if not is_finite(tensor)]
    if poisoned:
        raise CheckpointError(
            f"not saved: NaN or infinity in {', '.join(poisoned)}",
            "The training run broke down: go back to an earlier state and lower the learning rate.",
        )
    return {name: tensor.to("cpu", dtype).contiguous() for name, tensor in trained.items()}


def _config(
    drafter: DSpine,
    layout: Layout,
    target: Target,
    training: Mapping[str, Any],
    thinking: bool,
    dtype: torch.dtype,
) -> dict[str, Any]:
    c = drafter.config
    return {
        "architectures": ["DSpineDraftModel"],
        "auto_map": {"AutoModel": "dspine.DSpineDraftModel"},
        **decoder_json(c, target, dtype),
        "block_size": c.block_size,
        "is_causal": c.is_causal,
        "dflash_config": {
            "mask_token_id": c.mask_token_id,
            "target_layer_ids": list(c.target_layer_ids),
            "causal": c.is_causal,
        },
        "dspine_config": {
            "transfer_rank": c.transfer_rank,
            "message_size": c.message_size,
            "top_k": c.top_k,
            **switches.written(c),
            **_objective(training),
        },
        FORMAT: format_section(layout.name, target, training, thinking),
    }


def format_section(layout: str, target: Target, training: Mapping[str, Any], thinking: bool) -> dict[str, Any]:
    """Our own section of the config."""
    return {
        "version": FORMAT_VERSION,
        "layout": layout,
        "written_by": f"dspine {__version__}",
        "target": {
            "name": target.name,
            "head_sha256": target.head_digest,
            "template_sha256": template_digest(target, thinking=thinking),
            "thinking": thinking,
        },
        "training": dict(training),
        "draft_vocabulary": None,
    }


def _objective(training: Mapping[str, Any]) -> dict[str, Any]:
    """The training fields of `dspine_config`: the run's own where it says them, else the paper's."""
    settled = {
        **OBJECTIVE,
        "alignment_warmup_steps": training.get("warmup_steps", OBJECTIVE["alignment_warmup_steps"]),
    }
    return {name: training.get(name, value) for name, value in settled.items()}


def _vocabulary_section(record: VocabularyRecord) -> dict[str, Any]:
    return {"file": VOCABULARY, "size": record.size, "sha256": record.sha256}


def _with_extra(config: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in extra.items():
        section, dot, key = name.partition(".")
        if dot and isinstance(config.get(section), dict):
            config[section].setdefault(key, value)
        else:
            config.setdefault(name, value)
    return config


def _as_json(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"not saved: the training facts are not plain JSON ({error})", "Pass numbers and texts."
        ) from error
