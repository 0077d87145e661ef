"""What a checkpoint's config.json says.

One rule: nothing is guessed. A field that the network or the round depends on is there with a sane value or it is an
error that names it; a key that we do not know is kept and named. Source: the published schema of DSpine
(arXiv 2609.36173) drafters; `dspine_format` is our own section.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspine.checkpoint import switches
from dspine.checkpoint.fields import Fields
from dspine.checkpoint.keys import FORMAT, FULL, KNOWN, NEUTRAL, SECTIONS
from dspine.checkpoint.kinds import KNOWN as KEYS_OF_KINDS
from dspine.checkpoint.kinds import sizes_in
from dspine.drafter.config import BackboneConfig, DSpineConfig
from dspine.errors import CheckpointError, ConfigError

CONFIG = "config.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class TargetRecord:
    """The target that a drafter was trained for."""

    name: str
    head_sha256: str
    template_sha256: str | None
    thinking: bool


@dataclass(frozen=True)
class VocabularyRecord:
    """A restricted draft vocabulary: how many ids its side file holds, and their digest."""

    size: int
    sha256: str | None = None  # other programs' files have none


@dataclass(frozen=True)
class CheckpointConfig:
    """A drafter's config.json, read.

    layout: name of the layout that the folder follows.
    drafter: sizes of the network, of the class of its kind.
    target, vocabulary, written_by: of our own section; None in files of other programs.
    training: what the training run wrote down about itself.
    unknown: keys that we do not know, dotted, with their values.
    """

    folder: Path
    layout: str
    drafter: BackboneConfig
    target: TargetRecord | None = None
    vocabulary: VocabularyRecord | None = None
    written_by: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_codes(self) -> bool:
        """Whether it speaks in transfer codes, as DSpine drafters do."""
        return isinstance(self.drafter, DSpineConfig)

    @property
    def dspine(self) -> DSpineConfig:
        """The sizes of a DSpine drafter.

        Raises:
            CheckpointError: it is one of another kind.
        """
        if not isinstance(self.drafter, DSpineConfig):
            kind = type(self.drafter).__name__.removesuffix("Config")
            raise CheckpointError(
                f"{self.folder} holds a {kind} drafter, and this is for DSpine drafters",
                f"Name a DSpine drafter; this one drafts by: dspine generate --target TARGET --drafter {self.folder} "
                "PROMPT",
            )
        return self.drafter


def read_json(folder: Path) -> dict[str, Any]:
    """The folder's config.json, unwrapped if it is `{"config": {...}}`.

    Raises:
        CheckpointError: it is missing or not a JSON object.
    """
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no {CONFIG}", "Name the folder of a drafter.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})", "Fetch the file again.") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: not a JSON object", "Fetch the file again.")
    inner = raw.get("config")
    return inner if isinstance(inner, dict) and "hidden_size" not in raw else raw


def parse(raw: Mapping[str, Any], folder: Path, layout: str) -> CheckpointConfig:
    """Read a config, all of whose sections follow the published schema.

    Raises:
        CheckpointError: naming the file and the field.
    """
    fields = Fields(raw, folder / CONFIG)
    fields.neutral(NEUTRAL)
    _check_attention(fields)
    return record_of(fields, layout, _sizes(fields), _unknown(raw))


def parse_kind(raw: Mapping[str, Any], folder: Path, layout: str, kind: str) -> CheckpointConfig:
    """Read the config of a drafter of another kind, in our own layout.

    Raises:
        CheckpointError: naming the file and the field.
    """
    file = folder / CONFIG
    unknown = {key: value for key, value in raw.items() if key not in KEYS_OF_KINDS}
    return record_of(Fields(raw, file), layout, sizes_in(raw, file, kind), unknown)


def record_of(fields: Fields, layout: str, sizes: BackboneConfig, unknown: dict[str, Any]) -> CheckpointConfig:
    """What is said alike of all drafters."""
    section = fields.section(FORMAT)
    if (version := section.raw.get("version", FORMAT_VERSION)) != FORMAT_VERSION:
        raise section.error("version", f"is {version!r}, this program reads {FORMAT_VERSION}", "Update dspine.")
    return CheckpointConfig(
        folder=fields.file.parent,
        layout=layout,
        drafter=sizes,
        target=_target(section) if "target" in section.raw else None,
        vocabulary=_vocabulary(section) if section.raw.get("draft_vocabulary") else None,
        written_by=section.raw.get("written_by"),
        training=section.section("training").raw,
        unknown=unknown,
    )


def _sizes(fields: Fields) -> DSpineConfig:
    of_target = fields.integer("num_target_layers")
    sizes: dict[str, Any] = {
        "hidden_size": fields.integer("hidden_size"),
        "intermediate_size": fields.integer("intermediate_size"),
        "num_hidden_layers": fields.integer("num_hidden_layers"),
        "num_attention_heads": fields.integer("num_attention_heads"),
        "num_key_value_heads": fields.integer("num_key_value_heads"),
        "head_dim": fields.integer("head_dim"),
        "vocab_size": fields.integer("vocab_size"),
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "rope_theta": rope_theta(fields),
        "max_position_embeddings": fields.integer("max_position_embeddings"),
        "num_target_layers": of_target,
        "target_layer_ids": _taps(fields, of_target),
        "mask_token_id": fields.integer("mask_token_id", "dflash_config", least=0),
        "block_size": fields.integer("block_size", "dflash_config", least=2),
        "transfer_rank": fields.section("dspine_config").integer("transfer_rank"),
        "message_size": fields.section("dspine_config").integer("message_size"),
        "top_k": fields.section("dspine_config").integer("top_k"),
        **switches.read(fields),
    }
    try:
        return DSpineConfig(**sizes)
    except ConfigError as error:
        raise CheckpointError(f"{fields.file}: {error.what}", error.fix) from error


def _taps(fields: Fields, of_target: int) -> tuple[int, ...]:
    ids = fields.value("target_layer_ids", "dflash_config")
    fix = "Each id k names the output of the target's decoder layer k, counted from 0; the last layer is never tapped."
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not ids:
        raise fields.error("target_layer_ids", f"is {ids!r}, not a list of layer ids", fix)
    if any(type(i) is not int or not 0 <= i <= of_target - 2 for i in ids) or len(set(ids)) != len(ids):
        raise fields.error(
            "target_layer_ids",
            f"is {list(ids)}: for a target of {of_target} layers ids are distinct and in 0..{of_target - 2}",
            fix,
        )
    return tuple(ids)


def rope_theta(fields: Fields) -> float:
    """The base of the rotary angles, at the top level or in `rope_parameters`.

    Raises:
        CheckpointError: it is in neither place, or in both and not the same.
    """
    places = {"rope_theta": fields, "rope_parameters.rope_theta": fields.section("rope_parameters")}
    given = {
        name: place.number("rope_theta") for name, place in places.items() if place.raw.get("rope_theta") is not None
    }
    if not given:
        raise fields.error(
            "rope_theta", "is missing, and rope_parameters.rope_theta too", "Take it from the training run's config."
        )
    if len(set(given.values())) > 1:
        raise fields.error("rope_theta", f"is said twice, differently: {given}", "Keep the one of the training run.")
    return next(iter(given.values()))


def _check_attention(fields: Fields) -> None:
    layers = fields.integer("num_hidden_layers")
    kinds = fields.raw.get("layer_types")
    window = fields.raw.get("sliding_window")
    if kinds is not None and kinds != [FULL] * layers:
        raise fields.error(
            "layer_types",
            f"is {kinds}; a DSpine drafter has {layers} layers of {FULL}",
            "Drafters with sliding-window layers are not supported: train one with full attention.",
        )
    if kinds is None and window is not None:
        raise fields.error(
            "sliding_window", f"is {window!r} and layer_types is missing", "Say in layer_types which layers it is for."
        )


def _target(section: Fields) -> TargetRecord:
    target = section.section("target")
    template = target.raw.get("template_sha256")
    if not isinstance(thinking := target.value("thinking"), bool):
        raise target.error("thinking", f"is {thinking!r}, neither true nor false", "Correct it.")
    return TargetRecord(
        name=target.text("name"),
        head_sha256=target.text("head_sha256"),
        template_sha256=None if template is None else target.text("template_sha256"),
        thinking=thinking,
    )


def _vocabulary(section: Fields) -> VocabularyRecord:
    vocabulary = section.section("draft_vocabulary")
    return VocabularyRecord(size=vocabulary.integer("size"), sha256=vocabulary.text("sha256"))


def _unknown(raw: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        if key in SECTIONS and isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": inside for inner, inside in value.items()}
        else:
            flat[key] = value
    return {key: value for key, value in flat.items() if key not in KNOWN and key not in SECTIONS}
