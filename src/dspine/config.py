"""Recipes: the YAML file that one training run is made from.

One rule: read once, at the edge, and frozen; an unknown key is an error that names its place in the YAML and says which
key it may stand for, or lists the known ones. Defaults are the paper's (DSpine, arXiv 2609.36173) where the paper has a
value. Paths are relative to the folder the command runs in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dspine.errors import ConfigError
from dspine.shipped import places


class Section(BaseModel):
    """A frozen part of a recipe that knows all its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NanoTargetRecipe(Section):
    """The nano target: its text, sizes and run. The defaults made the one that is shipped."""

    builder: Literal["nano"]
    seed: int = 1
    conversations: int = Field(default=24_000, gt=0)  # different training conversations
    tokenizer_conversations: int = Field(default=8_000, gt=0)  # of which so many train the tokenizer
    vocabulary: int = Field(default=2048, gt=260)
    hidden_size: int = Field(default=128, gt=0)
    intermediate_size: int = Field(default=384, gt=0)
    layers: int = Field(default=6, gt=0)
    heads: int = Field(default=4, gt=0)
    kv_heads: int = Field(default=2, gt=0)
    head_dim: int = Field(default=32, gt=0)
    max_positions: int = Field(default=1024, gt=1)
    steps: int = Field(default=1000, gt=0)
    batch_tokens: int = Field(default=2048, gt=0)  # a step, padding included
    matrix_rate: float = Field(default=1.5e-2, gt=0)  # peak learning rate of the layers' matrices
    embedding_rate: float = Field(default=4e-3, gt=0)  # peak learning rate of embedding and norms
    warmup_steps: int = Field(default=40, ge=0)
    weight_decay: float = Field(default=0.05, ge=0)
    clip: float = Field(default=1.0, gt=0)
    save_steps: int = Field(default=100, gt=0)


class NanoPromptsRecipe(Section):
    """Prompts of nano's own text for training a drafter; none of them is ever held out for evaluation."""

    builder: Literal["nano"]
    seed: int = 1
    count: int = Field(gt=0)


class DatasetPromptsRecipe(Section):
    """Prompts from a data set of the hub, or from a local one that the `datasets` library reads."""

    builder: Literal["dataset"]
    name: str  # a hub id, a folder, or a .json, .jsonl, .csv or .parquet file
    config: str | None = None  # of a data set that has several
    split: str = "train"
    revision: str | None = None  # commit or tag of the hub; give one to get the same rows next year
    column: str | None = None  # that holds prompt, turns or messages; not given: conversations, messages or prompt
    source: str | None = None  # that the rows are named by; not given: the last part of the name
    turns: int | None = Field(default=None, gt=0)  # of a dialogue that are asked; not given: all
    count: int | None = Field(default=None, gt=0)  # rows taken, by seed and id; not given: all
    seed: int = 0


class BuildRecipe(Section):
    """What a run makes for itself before anything else, each where it is not there yet."""

    target: NanoTargetRecipe | None = None  # into `<output>/target`
    prompts: NanoPromptsRecipe | DatasetPromptsRecipe | None = Field(default=None, discriminator="builder")
    # ... into `data.prompts`


class MixEntry(Section):
    """How many prompts of one source are trained on."""

    source: str
    count: int = Field(gt=0)
    suffix: str = ""  # appended to the last user message


class SamplingRecipe(Section):
    """How answers are drawn; the default is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # of the draws, keyed by row


class ServerRecipe(Section):
    """A server of OpenAI's completions interface (SGLang, vLLM) that answers in the target's place."""

    url: str  # ends in /v1
    model: str  # the name that the server knows the target by
    concurrency: int = Field(default=64, gt=0)  # requests under way at once
    retries: int = Field(default=8, ge=0)  # of a request, with growing waits
    timeout: float = Field(default=600.0, gt=0)  # seconds until an answer must be there
    api_key_env: str | None = None  # environment variable with the key, where one is asked for


class DataRecipe(Section):
    """Prompts, and how the target answers them."""

    prompts: Path  # JSONL; not given but built: <output>/prompts.jsonl
    responses: Path  # JSONL, made from the prompts where it is missing; not given: <output>/responses.jsonl
    mix: tuple[MixEntry, ...] = ()  # empty: every prompt of the file
    seed: int = 0  # of the selection
    held_out: int = Field(default=0, ge=0)  # prompts of each source kept for measuring tau
    max_prompt_tokens: int = Field(default=512, gt=0)  # longer prompts are left out
    max_new_tokens: int = Field(default=1024, gt=1)
    batch: int = Field(default=48, gt=0)  # prompts answered at once
    thinking: bool = False
    sampling: SamplingRecipe = SamplingRecipe()
    drafter: str | None = None  # makes the answers faster; they stay what they are
    server: ServerRecipe | None = None  # not given: answered here

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.server is not None and self.drafter is not None:
            raise ValueError("drafter and server exclude each other: start the server with the drafter")
        return self


class FeaturesRecipe(Section):
    """What the target tells of the responses, and where it is kept."""

    # store: on disk, made once for all epochs. online: made anew in every step, without a disk; the target runs along.
    mode: Literal["store", "online"] = "store"
    folder: Path | None = None  # of the store; not given: <output>/features
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_gigabytes: float = Field(default=200.0, gt=0)  # a larger store is refused before anything is written


class DrafterRecipe(Section):
    """The drafter and its sizes; what is not given is proposed from the target, and each kind refuses others' sizes."""

    kind: str = "dspine"  # a name of `dspine.drafter.registry`
    # A special token of the target's that neither texts nor the chat template use, or the id of a spare embedding row.
    mask_token: str | int
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
    is_causal: bool | None = None  # whether rows of a block see earlier ones alone
    injected_layers: tuple[int, ...] | None = None  # dspine, as the next four: draft layers after which places hear
    predecessor: Literal["prediction", "none"] | None = None  # what they hear before tokens are chosen
    reach: int | None = Field(default=None, gt=0)  # how many places before it a place hears
    gated: bool | None = None
    refined: bool | None = None
    whitening: bool | None = None  # dspine, as the next: how it begins, which its file need not tell
    readout_init: Literal["directions", "whitened", "random"] | None = None  # what readouts start from
    sliding_window: int | None = Field(default=None, gt=0)
    sliding_layers: tuple[int, ...] | None = None
    logits_start: Literal[0, 1] | None = None  # first row that predicts; 0: rows predict the next token
    gru_hidden_size: int | None = Field(default=None, gt=0)  # domino
    projection_size: int | None = Field(default=None, gt=0)  # domino
    markov_rank: int | None = Field(default=None, gt=0)  # dspark
    markov_head: Literal["vanilla", "gated", "rnn"] | None = None  # dspark
    confidence: bool | None = None  # a head that estimates how likely each candidate is to be accepted
    confidence_with_markov: bool | None = None  # dspark
    tabulated: int | None = Field(default=None, ge=0)  # dspark
    conv_taps: int | None = Field(default=None, gt=0)  # dflash2
    conv_group_size: int | None = Field(default=None, gt=0)  # dflash2
    selector_rank: int | None = Field(default=None, gt=0)  # dflash2
    qk_norm: bool | None = None  # eagle3
    own_head: bool | None = None  # eagle3
    draft_vocabulary: int | None = Field(default=None, gt=0)  # ids a draft may hold; not given: all of them
    start_from: str | None = None  # a drafter of the same sizes whose weights training begins with

    def sizes(self) -> dict[str, Any]:
        """The sizes given here, by the names of the kind's config."""
        apart = {"kind", "draft_vocabulary", "mask_token", "start_from", *self.beginnings()}
        return self.model_dump(exclude_none=True, exclude=apart)

    def beginnings(self) -> dict[str, Any]:
        """How a DSpine drafter's transfer space and readouts begin, as far as it is given: no part of its sizes."""
        return self.model_dump(exclude_none=True, include={"whitening", "readout_init"})


class ObjectiveRecipe(Section):
    """Weights of the objective and of the curriculum: DSpine's with their defaults, and what other kinds have.

    Where another kind is trained, what is not given is as its authors have it, and what it does not know is refused.
    """

    ce_weight: float = Field(default=0.1, ge=0, le=1)  # α
    gamma: float = Field(default=7.0, gt=0)
    alignment: Literal["cosine", "token", "none"] = (
        "cosine"  # what every layer is held to: the code, the token, nothing
    )
    alignment_weight: float = Field(default=0.5, ge=0)  # β after its warm-up
    candidate_mass_threshold: float = Field(default=1e-4, ge=0)
    replacement: Literal["curriculum", "always", "never"] = "curriculum"  # when layers hear the correct predecessors
    replacement_layers: int | None = Field(default=None, gt=0)  # so many, from the first; not given: 3 of 5, or all
    replacement_probability: float = Field(default=0.5, ge=0, le=1)
    replacement_hold_ratio: float = Field(default=1 / 6, ge=0, le=1)
    replacement_end_ratio: float = Field(default=1 / 3, ge=0, le=1)
    chunk: int = Field(default=1024, gt=0)  # rows whose vocabulary-sized numbers exist at once
    dpace: float | None = Field(default=None, ge=0, le=1)  # dflash: α of D-PACE's weights in place of the decay's
    base_share: float | None = Field(default=None, ge=0, le=1)  # domino: λ at the start
    base_share_end_ratio: float | None = Field(default=None, gt=0)  # domino: share of the run at which λ is 0
    l1_weight: float | None = Field(default=None, ge=0)  # dspark
    confidence_weight: float | None = Field(default=None, ge=0)  # dspark
    selector_weight: float | None = Field(default=None, ge=0)  # dflash2
    step_decay: float | None = Field(default=None, gt=0, le=1)  # eagle3: weight of a draft step over the one before

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.replacement_end_ratio < self.replacement_hold_ratio:
            raise ValueError("replacement_end_ratio is smaller than replacement_hold_ratio")
        return self

    @model_validator(mode="after")
    def _heeded(self) -> Self:
        """Nothing is given that a switch makes meaningless."""
        curriculum = {"replacement_probability", "replacement_hold_ratio", "replacement_end_ratio"}
        idle = {"alignment_weight"} if self.alignment == "none" else set()
        idle |= curriculum if self.replacement != "curriculum" else set()
        idle |= {"replacement_layers"} if self.replacement == "never" else set()
        if given := sorted(idle & self.given().keys()):
            switches = f"alignment {self.alignment} and replacement {self.replacement}"
            raise ValueError(f"{', '.join(given)} would change nothing with {switches}")
        return self

    def settled(self) -> ObjectiveRecipe:
        """The same with the numbers of the schedules as the switches `alignment` and `replacement` make them."""
        numbers: dict[str, float] = {"alignment_weight": 0.0} if self.alignment == "none" else {}
        if self.replacement != "curriculum":
            always = float(self.replacement == "always")
            numbers |= {"replacement_probability": always}
            numbers |= {"replacement_hold_ratio": always, "replacement_end_ratio": always}
        return self.model_copy(update=numbers)

    def given(self) -> dict[str, Any]:
        """What the recipe says itself."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


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
    recompute: bool = False  # keep a draft layer's input alone, run it again for the gradient: less memory, more time
    sharded: bool = False  # several processes share out weights, gradients and moments (FSDP2); else each has all
    seed: int = 0
    bad_steps: int = Field(default=10, gt=0)  # steps in a row without a finite gradient that end the run
    save_steps: int = Field(default=500, gt=0)
    save_minutes: float = Field(default=10.0, gt=0)
    keep: int = Field(default=2, gt=0)  # checkpoints kept
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()  # shown the log's numbers

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

    target: str  # not given but built: <output>/target
    dtype: Literal["float32", "bfloat16"] | None = None  # the target's; None: as it is loaded without being told
    output: Path  # the run's folder: features, checkpoints, log, and the finished drafter in `drafter/`
    build: BuildRecipe = BuildRecipe()
    data: DataRecipe
    features: FeaturesRecipe = FeaturesRecipe()
    drafter: DrafterRecipe
    objective: ObjectiveRecipe = ObjectiveRecipe()
    training: TrainingRecipe
    evaluate: EvaluateRecipe = EvaluateRecipe()
    ablation: dict[str, tuple[str, ...]] = {}  # variants of its own: a name, and "section.key=value" each

    @model_validator(mode="before")
    @classmethod
    def _places(cls, given: Any) -> Any:
        """Say where in the run's folder the things lie that it makes, where the recipe does not."""
        if not isinstance(given, dict) or not isinstance(output := given.get("output"), str | Path):
            return given
        build, data = given.get("build"), given.get("data")
        built = {name for name, value in build.items() if value is not None} if isinstance(build, dict) else set()
        placed = {"target": str(Path(output) / "target"), **given} if "target" in built else dict(given)
        if isinstance(data, dict):
            made = ("responses", "prompts") if "prompts" in built else ("responses",)
            placed["data"] = {name: Path(output) / f"{name}.jsonl" for name in made} | data
        return placed

    @model_validator(mode="after")
    def _built_here(self) -> Self:
        if self.build.target is not None and Path(self.target) != self.output / "target":
            raise ValueError("target and build.target exclude each other: a target that is built lies in the output")
        return self

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if self.data.held_out and not self.data.mix:
            raise ValueError("data.held_out needs data.mix: it counts prompts of each source of the mix")
        return self


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: a YAML file, or the name of a shipped recipe.
        overrides: "section.key=value" each, the value in YAML, applied in order.

    Raises:
        ConfigError: no such file, broken YAML, an unknown key, a missing or a wrong value.
    """
    path = find_recipe(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        fix = f"Give a YAML file, or a shipped recipe by its name: {', '.join(shipped_recipes())}."
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}", fix) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no recipe: its top level must be a mapping of keys")
    for override in overrides:
        _override(content, override)
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        faults = error.errors()
        listed = dict.fromkeys(known for fault in faults if (known := _known_keys(fault)))
        raise ConfigError(f"{path}: " + "; ".join(map(_complaint, faults)), "\n".join(listed) or None) from error


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a shipped recipe ("nano"), or the path as it was given (./nano for one of that name)."""
    if isinstance(name_or_path, str) and name_or_path in (shipped := shipped_recipes()):
        return shipped[name_or_path]
    return Path(name_or_path).expanduser()


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with dspine, by name."""
    return {path.stem: path for folder in reversed(places("recipes")) for path in sorted(folder.glob("*.yaml"))}


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
    location = _untagged(error["loc"])
    name = ".".join(map(str, location)) or "recipe"
    if error["type"].startswith("union_tag"):
        key = error["ctx"]["discriminator"].strip("'")
        return f"'{name}.{key}': {error['msg']}"
    if error["type"] == "extra_forbidden":
        meant = _meant(error["loc"])
        return f"unknown key {name!r}" + (f": did you mean {meant!r}?" if meant else "")
    if error["type"] == "missing":
        return f"{name!r} is missing"
    return f"{name!r}: {error['msg'].removeprefix('Value error, ')}"


def _meant(location: tuple[str | int, ...]) -> str | None:
    """The known key that an unknown one looks like."""
    known = _section_at(location[:-1]).model_fields
    return next(iter(get_close_matches(str(location[-1]), known, n=1)), None)


def _known_keys(error: Mapping[str, Any]) -> str | None:
    """The keys of the section in which one is unknown and like none of them."""
    location = tuple(error["loc"])
    if error["type"] != "extra_forbidden" or _meant(location):
        return None
    section = ".".join(str(key) for key in _untagged(location[:-1]) if isinstance(key, str)) or "a recipe"
    return f"Keys of {section}: {', '.join(_section_at(location[:-1]).model_fields)}."


def _untagged(location: Iterable[str | int]) -> tuple[str | int, ...]:
    """A place as the YAML has it: pydantic puts in which of several sections it took one for."""
    place = tuple(location)
    return tuple(key for index, key in enumerate(place) if len(_sections_at(place[:index])) < 2)


def _section_at(location: tuple[str | int, ...]) -> type[Section]:
    """The section a place of the YAML belongs to."""
    return _sections_at(location)[0]


def _sections_at(location: tuple[str | int, ...]) -> list[type[Section]]:
    """The sections that a place may be: several where the next key says which one; none for a value."""
    sections: list[type[Section]] = [Recipe]
    for key in location:
        if isinstance(key, int):
            continue
        if len(sections) > 1:
            sections = [one for one in sections if key in get_args(one.model_fields["builder"].annotation)]
            continue
        field = sections[0].model_fields.get(key) if sections else None
        annotation = None if field is None else field.annotation
        parts = [annotation, *get_args(annotation)]
        sections = [part for part in parts if isinstance(part, type) and issubclass(part, Section)]
    return sections
