"""Sizes of a drafter out of the Qwen3-like config that every public layout is built on.

One rule: a field that would make another network is refused by name and value; one that a drafter needs is there or it
is an error. Sources: DFlash (arXiv 2602.06036) and its descendants' configs; transformers' Qwen3Config and LlamaConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspine.checkpoint.fields import Fields
from dspine.checkpoint.keys import FORMAT, FULL
from dspine.checkpoint.layout import Contents
from dspine.checkpoint.public.known import HARMLESS, IDLE, READ
from dspine.checkpoint.public.taps import eagle_default, taps_in
from dspine.checkpoint.record import CONFIG, rope_theta
from dspine.drafter.config import BackboneConfig
from dspine.errors import CheckpointError, ConfigError

SLIDING = "sliding_attention"
SECTIONS = ("dflash_config", "dspark_config", "eagle_config")


class TargetNeeded(CheckpointError):
    """A file that leaves to its target what only the target can tell."""


@dataclass(frozen=True)
class Source:
    """Where the fields of a folder lie.

    config: the whole config.json. model: where the sizes of the decoder are, the same or a section.
    layers: decoder layers of the target, by config.json or by the target at hand; None: nobody knows yet.
    """

    contents: Contents
    config: Fields
    model: Fields
    layers: int | None

    @classmethod
    def of(cls, contents: Contents, layers: int | None, section: str | None = None) -> Source:
        """The fields of a folder, for a target of so many layers if it is at hand."""
        config = Fields(contents.raw, contents.folder / CONFIG)
        if config.raw.get("num_target_layers") is not None:
            layers = config.integer("num_target_layers")
        return cls(contents, config, config.section(section) if section else config, layers)

    def said(self, key: str) -> Any:
        """What stands at `key` in a section of the drafter's, else at the top; None if nothing does."""
        for place in (*(self.config.section(name) for name in SECTIONS), self.config):
            if place.raw.get(key) is not None:
                return place.raw[key]
        return None

    def integer(self, key: str, least: int = 1) -> int:
        """The integer at `key`, looked for as `said` does.

        Raises:
            CheckpointError: it is missing or something else.
        """
        for section in SECTIONS:
            if self.config.section(section).raw.get(key) is not None:
                return self.config.integer(key, section, least)
        return self.config.integer(key, "dflash_config" if "dflash_config" in self.config.raw else None, least)

    def flag(self, key: str) -> bool | None:
        """True, false, or None where nothing is said.

        Raises:
            CheckpointError: it is something else.
        """
        value = self.said(key)
        if value is not None and not isinstance(value, bool):
            raise self.config.error(key, f"is {value!r}, neither true nor false", "Correct it.")
        return value

    def check(self, harmless: Mapping[str, tuple[Any, ...]] | None = None) -> None:
        """Refuse fields that ask for what is not computed here.

        Raises:
            CheckpointError: naming the field and its value.
        """
        for place in (self.config, self.model) if self.model is not self.config else (self.config,):
            place.neutral({**HARMLESS, **(harmless or {})})
        width = self.model.integer("hidden_size")
        if self.config.raw.get("target_hidden_size") not in (None, width):
            raise self.config.error(
                "target_hidden_size",
                f"is {self.config.raw['target_hidden_size']!r}, and hidden_size {width}",
                "Only drafters of the target's own width borrow its embedding and head: run it where it was trained.",
            )

    def unknown(self, *known: str) -> dict[str, Any]:
        """Keys that no rule here knows, dotted."""
        named = {*HARMLESS, *IDLE, *READ, *known}
        sections = {FORMAT, "rope_parameters", *SECTIONS}
        found: dict[str, Any] = {}
        for key, value in self.config.raw.items():
            if key in sections and isinstance(value, dict):
                found |= {f"{key}.{inner}": inside for inner, inside in value.items() if key != FORMAT}
            else:
                found[key] = value
        return {key: value for key, value in found.items() if key not in named and key not in sections}

    # ---------------------------------------------------------------- sizes

    def decoder(self) -> dict[str, Any]:
        """Sizes that every drafter has, taps and block apart."""
        model = self.model
        heads, width = model.integer("num_attention_heads"), model.integer("hidden_size")
        return {
            "hidden_size": width,
            "intermediate_size": model.integer("intermediate_size"),
            "num_hidden_layers": model.integer("num_hidden_layers"),
            "num_attention_heads": heads,
            "num_key_value_heads": model.integer("num_key_value_heads"),
            "head_dim": model.integer("head_dim") if model.raw.get("head_dim") is not None else width // heads,
            "vocab_size": model.integer("vocab_size"),
            "rms_norm_eps": model.number("rms_norm_eps"),
            "rope_theta": rope_theta(model),
            "max_position_embeddings": model.integer("max_position_embeddings"),
        }

    def tapped(self, *, eagle: bool = False) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Taps and target layers, and a warning where the number of layers is only known to be large enough.

        Raises:
            CheckpointError: no taps are named, and the target that would tell them is not at hand.
        """
        ids = taps_in(self.config, self.layers)
        if ids is None and eagle and self.layers is not None:
            ids = eagle_default(self.layers)
        if ids is None and eagle:
            raise TargetNeeded(
                f"{self.config.file}: target_layer_ids is missing, and what EAGLE-3 taps then depends on its target",
                f"Name the target: dspine export {self.contents.folder} OUT --layout dspine --target TARGET",
            )
        if ids is None:
            raise self.config.error(
                "target_layer_ids", "is missing", "Take it from the training run's config: dflash_config has it."
            )
        if self.layers is not None:
            return {"target_layer_ids": ids, "num_target_layers": self.layers}, ()
        least = max(ids) + 2
        note = f"{self.config.file}: num_target_layers is not said; its taps need a target of {least} layers at least"
        return {"target_layer_ids": ids, "num_target_layers": least}, (note,)

    def block(self, logits_start: int) -> dict[str, Any]:
        """Rows of a block, which of them predict, and what they see."""
        layers = self.model.integer("num_hidden_layers")
        kinds, window = self.model.raw.get("layer_types"), self.model.raw.get("sliding_window")
        if kinds is None and window is None:
            kinds = [FULL] * layers
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (FULL, SLIDING) for kind in kinds):
            raise self.model.error(
                "layer_types",
                f"is {kinds!r}; there are {layers} layers, each {FULL} or {SLIDING}",
                "Say for each draft layer what it attends to.",
            )
        sliding = tuple(layer for layer, kind in enumerate(kinds) if kind == SLIDING)
        return {
            "mask_token_id": self.integer("mask_token_id", least=0),
            "block_size": self.integer("block_size", least=2),
            "logits_start": self._first_row(logits_start),
            "sliding_layers": sliding,
            "sliding_window": self.model.integer("sliding_window") if sliding else None,
            "is_causal": self._causal(bool(sliding)),
        }

    def _first_row(self, otherwise: int) -> int:
        if (start := self.said("logits_start")) is not None:
            if start not in (0, 1):
                raise self.config.error("logits_start", f"is {start!r}, neither 0 nor 1", "Correct it.")
            return int(start)
        from_anchor = self.flag("sample_from_anchor")
        return otherwise if from_anchor is None else int(not from_anchor)

    def _causal(self, sliding: bool) -> bool | None:
        """What is said; else whether sliding layers are causal while full ones see both ways."""
        if (causal := self.flag("is_causal")) is None:
            causal = self.flag("causal")
        if causal is None and (not sliding or self.flag("sliding_window_non_causal")):
            return False
        return causal


def make(config: type[BackboneConfig], sizes: Mapping[str, Any], source: Source) -> BackboneConfig:
    """Sizes of a class.

    Raises:
        CheckpointError: they do not fit each other.
    """
    try:
        return config(**sizes)
    except ConfigError as error:
        raise CheckpointError(f"{source.config.file}: {error.what}", error.fix) from error
