"""From names to a target and its drafter in MLX.

One rule: drafters are opened, judged and read by `dspine.checkpoint`, so that whatever it refuses is refused here with
the same words; only the filling of the network is MLX's. Codes are made of the target's rows before these are
quantised.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import torch
import transformers
from mlx_lm.utils import load_model

from dspine.checkpoint.fit import check_fit, warnings_of
from dspine.checkpoint.loading import CheckpointWarning, check_tensors, draft_ids_of, read_tensors, temperatures_of
from dspine.checkpoint.opening import Checkpoint, find_drafter, open_checkpoint
from dspine.checkpoint.public.tables import check_tables
from dspine.checkpoint.schema import to_module
from dspine.drafter.config import DSpineConfig
from dspine.drafter.dflash import DFlashConfig
from dspine.drafter.registry import kind_for
from dspine.errors import CheckpointError, TargetError
from dspine.serve.mlx.arrays import DTYPES, to_mlx, to_torch
from dspine.serve.mlx.caches import check_caches
from dspine.serve.mlx.dflash import DFlashDrafter
from dspine.serve.mlx.dspine import DSpineDrafter
from dspine.serve.mlx.network import ConfidenceHead, Network
from dspine.serve.mlx.proposal import MlxDrafter
from dspine.serve.mlx.rows import rows_of
from dspine.serve.mlx.tables import Tables
from dspine.serve.mlx.target import MlxTarget
from dspine.target.loading import place_of, tokenizer_of

# What mlx-lm raises for files that are absent, damaged, or of a kind that it does not know.
_UNREADABLE = (OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError)


def use_device(name: str | None) -> None:
    """Compute on "gpu" or "cpu"; None: as MLX chooses.

    Raises:
        TargetError: another name, or MLX has no such device here.
    """
    if name is None:
        return
    known = {"cpu": mx.cpu, "gpu": mx.gpu}
    if name not in known or not mx.is_available(mx.Device(known[name])):
        raise TargetError(f"there is no device {name!r} for MLX here", "Use cpu, or gpu on Apple silicon.")
    mx.set_default_device(mx.Device(known[name]))


def load_mlx_target(name: str, *, dtype: torch.dtype | None = None) -> MlxTarget:
    """Load a target.

    Args:
        name: as `load_target` takes it; a folder may also be one that mlx-lm has quantised.
        dtype: of the weights; None: as they are stored.

    Raises:
        TargetError: not found, not readable, or of a kind that mlx-lm does not know.
    """
    place = place_of(name)
    try:
        folder = _fetched(place)
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = tokenizer_of(folder, name)
        model, _ = load_model(folder, model_config=_rotary(folder))
    except _UNREADABLE as error:
        raise TargetError(
            f"mlx-lm cannot load the target {name}: {error}",
            "Give a folder or a hub id of a model that mlx-lm knows (its models/ lists them).",
        ) from error
    if dtype is not None:
        model.set_dtype(DTYPES[dtype])
        mx.eval(model.parameters())
    return MlxTarget(model, tokenizer, _described(folder, config), name=name)


def load_mlx_drafter(
    name_or_path: str | Path, target: MlxTarget, *, dtype: torch.dtype | None = None, thinking: bool | None = None
) -> MlxDrafter:
    """Load a DSpine or DFlash drafter, from any layout that `load_drafter` knows.

    Args:
        dtype: of the trained weights; None: the target's. Codes are float32 always.
        thinking: whether prompts will be rendered with thinking on, to warn if the drafter was trained otherwise.

    Raises:
        CheckpointError: whatever does not fit, or a drafter of another kind. Warns by `CheckpointWarning`.
        TargetError: a target whose caches cannot be rolled back, or that was quantised too early.
    """
    checkpoint = open_checkpoint(find_drafter(name_or_path), target.num_layers)
    _refuse_kind(checkpoint)
    check_caches(target.new_caches(), target.name)
    target.check_embedding()
    check_fit(checkpoint.config, target)
    check_tensors(checkpoint)
    for text in (*checkpoint.notes, *warnings_of(checkpoint.config, target, thinking)):
        warnings.warn(text, CheckpointWarning, stacklevel=2)
    ids = draft_ids_of(checkpoint)
    if checkpoint.tables:
        check_tables(checkpoint.tables, _tabled(target), ids, checkpoint.config.folder)
    return _built(checkpoint, target, ids, dtype or target.dtype)


def load_mlx_pair(
    target: str,
    drafter: str | Path | None,
    *,
    dtype: torch.dtype | None = None,
    bits: int | None = None,
    drafter_bits: int | None = None,
    thinking: bool | None = None,
) -> tuple[MlxTarget, MlxDrafter | None]:
    """Load a target and its drafter, then quantise them.

    Args:
        bits, drafter_bits: 4 or 8; None: weights stay as they are.

    Raises:
        DspineError: as the two loaders do.
    """
    loaded = load_mlx_target(target, dtype=dtype)
    network = None if drafter is None else load_mlx_drafter(drafter, loaded, thinking=thinking)
    if bits is not None:
        loaded.quantise(bits)
    if network is not None and drafter_bits is not None:
        network.quantise(drafter_bits)
    return loaded, network


def _built(checkpoint: Checkpoint, target: MlxTarget, ids: torch.Tensor | None, dtype: torch.dtype) -> MlxDrafter:
    config, loaded = checkpoint.config.drafter, read_tensors(checkpoint)
    assert isinstance(config, DSpineConfig | DFlashConfig)
    network = Network(config, _confidence_head(config, checkpoint.config.folder))
    trained = to_module({name: loaded[name].to(dtype) for name in checkpoint.trained})
    network.fill({name: to_mlx(tensor) for name, tensor in trained.items()})
    tables = Tables(target, None if ids is None else to_mlx(ids))
    if isinstance(config, DSpineConfig):
        assert checkpoint.transfer is not None  # as its sizes are DSpine's
        space = checkpoint.transfer.space(loaded, target.head_weight)
        return DSpineDrafter(config, network, tables, to_mlx(space.codes))
    return DFlashDrafter(config, network, tables)


def _confidence_head(config: DSpineConfig | DFlashConfig, folder: Path) -> ConfidenceHead | None:
    temperatures = temperatures_of(folder, config.candidates, config.confidence)
    if not config.confidence:
        return None
    width = config.hidden_size if isinstance(config, DSpineConfig) else 2 * config.hidden_size
    return ConfidenceHead(width, temperatures)


def _tabled(target: MlxTarget) -> SimpleNamespace:
    """The target's tables as torch tensors."""
    rows = rows_of(target.embedding, mx.arange(target.embedding.weight.shape[0]))
    embedding = SimpleNamespace(weight=to_torch(rows))
    return SimpleNamespace(name=target.name, embedding=embedding, head_weight=target.head_weight)


def _refuse_kind(checkpoint: Checkpoint) -> None:
    sizes = checkpoint.config.drafter
    if not isinstance(sizes, DSpineConfig | DFlashConfig):
        raise CheckpointError(
            f"{checkpoint.config.folder}: a {kind_for(sizes).title} drafter; the mlx backend has DSpine and DFlash",
            "Leave out --backend mlx, or take a drafter of one of these.",
        )


def _fetched(place: str | Path) -> Path:
    """The folder of a place; a hub id is fetched first."""
    if isinstance(place, Path):
        return place
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(place, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]))


def _rotary(folder: Path) -> dict[str, Any]:
    """The rotary settings by the names of older configs.

    Some of mlx-lm's models know these alone, and take another base without a word where they are missing.
    """
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings = raw.get("rope_parameters")
    if not isinstance(settings, dict) or "rope_theta" not in settings or "rope_theta" in raw:
        return {}
    scaled = settings.get("rope_type", "default") != "default"
    return {"rope_theta": settings["rope_theta"]} | ({"rope_scaling": settings} if scaled else {})


def _described(folder: Path, config: object) -> SimpleNamespace:
    try:
        generation = transformers.GenerationConfig.from_pretrained(folder)
    except OSError:  # no such file: the config says what ends an answer
        generation = None
    return SimpleNamespace(config=config, generation_config=generation)
