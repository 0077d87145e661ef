"""The recipe of a training run, section by section.

One rule: defaults are the paper's (DSpine, arXiv 2609.36173) where the paper has a value. Paths are relative to the
folder that the command runs in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dspine.config.build import BuildRecipe
from dspine.config.objective import ObjectiveRecipe
from dspine.config.section import Section


class MixEntry(Section):
    """How many prompts of one source are trained on."""

    source: str
    count: int = Field(gt=0)
    suffix: str = ""  # appended to the last user message


class SamplingRecipe(Section):
    """How answers are drawn; the default is greedy."""

    temperature: float = Field(default=0.0, ge=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int = Field(default=0, ge=0)  # of the draws, keyed by row


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
    # online: the target runs in a process of its own on one of these, which the training processes of a machine take in
    # turn; not given: in the training process, on its device.
    devices: tuple[str, ...] = ()
    # With devices: micro-batches that are made, or being made, while one is trained on; not given: 2.
    ahead: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _heeded(self) -> Self:
        if self.devices and self.mode != "online":
            raise ValueError("devices needs mode online: a store is written by the training process, before it trains")
        if self.ahead is not None and not self.devices:
            raise ValueError("ahead needs devices: in the training process features are made when they are needed")
        return self


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
    only: Literal["confidence"] | None = None  # train the confidence head of drafter.start_from and nothing else
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
    # Variants of its own: a name, and "section.key=value" each.
    ablation: dict[str, tuple[str, ...]] = Field(default_factory=dict)

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
    def _confidence_alone(self) -> Self:
        if self.training.only is None:
            return self
        if self.drafter.start_from is None:
            raise ValueError("training.only needs drafter.start_from: a drafter whose confidence is trained")
        if self.drafter.confidence is False:
            raise ValueError("training.only: confidence and drafter.confidence: false exclude each other")
        idle = [
            f"objective.{name}"
            for name in self.objective.model_dump(exclude_defaults=True)
            if name not in ("gamma", "chunk")
        ]
        if self.drafter.draft_vocabulary is not None:
            idle.append("drafter.draft_vocabulary")
        if idle:
            raise ValueError(f"{', '.join(idle)} would change nothing where only the confidence is trained")
        return self

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if self.data.held_out and not self.data.mix:
            raise ValueError("data.held_out needs data.mix: it counts prompts of each source of the mix")
        if self.evaluate.every_steps and not self.data.held_out:
            raise ValueError("evaluate.every_steps needs data.held_out: tau is measured on prompts that are held out")
        return self
