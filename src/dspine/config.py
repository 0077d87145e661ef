"""Recipes: the YAML file that one training run is made from.

One rule: read once, at the edge, and frozen; an unknown key is an error that names its place in the YAML and
lists the known ones. Defaults are the paper's (DSpine, arXiv 2609.36173) where the paper has a value. Paths are
relative to the folder the command runs in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dspine.errors import ConfigError


class Section(BaseModel):
    """A frozen part of a recipe that knows all its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MixEntry(Section):
    """How many prompts of one source are trained on."""

    source: str
    count: int = Field(gt=0)
    suffix: str = ""  # appended to the last user message


class DataRecipe(Section):
    """Prompts, and how the target answers them."""

    prompts: Path  # JSONL
    responses: Path  # JSONL, written by `dspine regenerate`
    mix: tuple[MixEntry, ...] = ()  # empty: every prompt of the file
    seed: int = 0  # of the selection
    held_out: int = Field(default=0, ge=0)  # prompts of each source kept for measuring tau
    max_prompt_tokens: int = Field(default=512, gt=0)  # longer prompts are left out
    max_new_tokens: int = Field(default=1024, gt=1)
    batch: int = Field(default=48, gt=0)  # prompts answered at once
    thinking: bool = False


class DrafterRecipe(Section):
    """Sizes of the drafter; what is not given is proposed from the target."""

    mask_token: str  # a special token of the target's that neither texts nor the chat template use
    num_hidden_layers: int | None = Field(default=None, gt=0)
    block_size: int | None = Field(default=None, gt=1)  # anchor included
    target_layer_ids: tuple[int, ...] | None = None
    intermediate_size: int | None = Field(default=None, gt=0)
    num_attention_heads: int | None = Field(default=None, gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    transfer_rank: int | None = Field(default=None, gt=0)
    message_size: int | None = Field(default=None, gt=0)
    top_k: int | None = Field(default=None, gt=0)
    draft_vocabulary: int | None = Field(default=None, gt=0)  # ids a draft may hold; not given: all of them

    def sizes(self) -> dict[str, Any]:
        """The sizes given here, by the names of `DSpineConfig`."""
        return self.model_dump(exclude_none=True, exclude={"draft_vocabulary", "mask_token"})


class ObjectiveRecipe(Section):
    """Weights of the objective and of the curriculum."""

    ce_weight: float = Field(default=0.1, ge=0, le=1)  # α
    gamma: float = Field(default=7.0, gt=0)
    alignment_weight: float = Field(default=0.5, ge=0)  # β after its warm-up
    candidate_mass_threshold: float = Field(default=1e-4, ge=0)
    replacement_probability: float = Field(default=0.5, ge=0, le=1)
    replacement_hold_ratio: float = Field(default=1 / 6, ge=0, le=1)
    replacement_end_ratio: float = Field(default=1 / 3, ge=0, le=1)
    chunk: int = Field(default=1024, gt=0)  # rows whose vocabulary-sized numbers exist at once

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.replacement_end_ratio < self.replacement_hold_ratio:
            raise ValueError("replacement_end_ratio is smaller than replacement_hold_ratio")
        return self


class TrainingRecipe(Section):
    """The run: length, window, optimiser, safety."""

    steps: int | None = Field(default=None, gt=0)  # exactly one of steps and epochs
    epochs: int | None = Field(default=None, gt=0)
    window_samples: int = Field(default=112, gt=0)  # sequences an optimiser step
    micro_batch: int | None = Field(default=None, gt=0)  # sequences at once; not given: the window
    anchors_per_sample: int = Field(default=512, gt=0)
    max_length: int = Field(default=3072, gt=1)  # tokens of a sequence; the rest is cut off
    learning_rate: float = Field(default=6e-4, gt=0)
    warmup_ratio: float = Field(default=0.04, ge=0, lt=1)
    clip: float = Field(default=1.0, gt=0)
    precision: Literal["float32", "bfloat16"] = "float32"  # of the matrix products; weights stay float32
    seed: int = 0
    bad_steps: int = Field(default=10, gt=0)  # steps in a row without a finite gradient that end the run
    save_steps: int = Field(default=500, gt=0)
    save_minutes: float = Field(default=10.0, gt=0)
    keep: int = Field(default=2, gt=0)  # checkpoints kept

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        return self


class EvaluateRecipe(Section):
    """The real tau while training, by the real engine, greedy, on held-out prompts."""

    every_steps: int = Field(default=0, ge=0)  # 0: only at the end
    prompts: int = Field(default=16, ge=0)  # 0: never
    max_new_tokens: int = Field(default=64, gt=1)


class Recipe(Section):
    """One training run from prompts to a drafter."""

    target: str
    output: Path  # the run's folder: features, checkpoints, log, and the finished drafter in `drafter/`
    data: DataRecipe
    drafter: DrafterRecipe
    objective: ObjectiveRecipe = ObjectiveRecipe()
    training: TrainingRecipe
    evaluate: EvaluateRecipe = EvaluateRecipe()

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if self.data.held_out and not self.data.mix:
            raise ValueError("data.held_out needs data.mix: it counts prompts of each source of the mix")
        return self


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: a YAML file.
        overrides: "section.key=value" each, the value in YAML, applied in order.

    Raises:
        ConfigError: no such file, broken YAML, an unknown key, a missing or a wrong value.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}", "Give a YAML file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no recipe: its top level must be a mapping of keys")
    for override in overrides:
        _override(content, override)
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_complaint(e) for e in error.errors())) from error


def _override(content: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override!r} is not of the form section.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML: {error}") from error
    place = content
    for key in keys[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {override!r}: {key} is not a section of the recipe")
    place[keys[-1]] = value


def _complaint(error: Mapping[str, Any]) -> str:
    location = tuple(error["loc"])
    name = ".".join(map(str, location)) or "recipe"
    if error["type"] == "extra_forbidden":
        known = ", ".join(_section_at(location[:-1]).model_fields)
        return f"unknown key {name!r}; known keys there: {known}"
    if error["type"] == "missing":
        return f"{name!r} is missing"
    return f"{name!r}: {error['msg'].removeprefix('Value error, ')}"


def _section_at(location: tuple[str | int, ...]) -> type[Section]:
    """The section a place of the YAML belongs to."""
    section: type[Section] = Recipe
    for key in location:
        if isinstance(key, int):
            continue
        annotation = section.model_fields[key].annotation
        parts = [annotation, *get_args(annotation)]
        section = next(part for part in parts if isinstance(part, type) and issubclass(part, Section))
    return section
