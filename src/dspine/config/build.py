"""What a run makes for itself before anything else: a target, prompts.

One rule: the builder's name says which keys there are.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dspine.config.section import Section


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
