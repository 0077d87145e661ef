"""Everything that stands before the first step: target, responses, features, vocabulary, drafter.

One rule: made from the recipe alone, and summed up in an `identity` that a checkpoint must agree with before a
run goes on from it. Source: DSpine (arXiv 2609.36173), training setup; the transfer space is fitted once, here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dspine.checkpoint import check_mask_token, drafter_digest
from dspine.config import Recipe
from dspine.drafter import KINDS, DSpineConfig, Network
from dspine.drafter.config import BackboneConfig
from dspine.errors import ConfigError, DataError
from dspine.target import Target, load_target
from dspine.target.chat import render
from dspine.train.apart import FeaturesApart, refuse_absent
from dspine.train.beginning import begin
from dspine.train.blocks import eligible_anchors
from dspine.train.features import FeatureStore, write_features
from dspine.train.materials import build, responses, selection
from dspine.train.objectives.choice import objective_facts
from dspine.train.online import OnlineFeatures
from dspine.train.processes import ALONE, Processes
from dspine.train.prompts import Prompt
from dspine.train.responses import ResponseRow, TrainingSequence, responses_digest, training_sequences
from dspine.train.start import starting_point, take_over, with_confidence
from dspine.train.trackers import refuse_missing
from dspine.train.vocabulary import coverage, most_frequent

# What may differ between the sessions of one run: it changes no number.
FREE = {"micro_batch", "recompute", "sharded", "bad_steps", "save_steps", "save_minutes", "keep", "trackers"}


Features = FeatureStore | OnlineFeatures | FeaturesApart


@dataclass(frozen=True)
class Prepared:
    """A run before its first step.

    store: where the sequences' features come from.
    samples: ids of the sequences with at least one anchor, in the order of the response file.
    unused: ids of sequences without an anchor or, in a store, with numbers that are not finite.
    held_out: prompts as token ids; empty when the recipe measures nothing.
    """

    recipe: Recipe
    target: Target
    drafter: Network
    store: Features
    samples: list[str]
    unused: list[str]
    held_out: list[list[int]]
    coverage: float  # share of response tokens that the draft vocabulary holds
    identity: dict[str, str] = field(default_factory=dict)


def prepare(recipe: Recipe, processes: Processes = ALONE) -> Prepared:
    """Load and make what a run needs, each where it is not there already.

    Args:
        processes: those that share the run, this one among them.

    Raises:
        ConfigError, DataError, TargetError: each says what is wrong in the recipe or its files.
        KeyboardInterrupt: passed on; whatever was made until then is there the next time.
    """
    refuse_missing(recipe.training.trackers)
    refuse_absent(recipe.features.devices)
    build(recipe)
    target = load_target(recipe.target, dtype=getattr(torch, recipe.dtype) if recipe.dtype else None)
    rows = responses(recipe, target)
    held_out = held_out_prompts(recipe, target, {row.id for row in rows})
    drafter, share = build_drafter(recipe, target, rows)
    store = _features(recipe, target, rows, drafter, processes)
    sequences = training_sequences(rows, recipe.training.max_length)
    samples = with_anchors(recipe, sequences, store)
    return Prepared(
        recipe=recipe,
        target=target,
        drafter=drafter,
        store=store,
        samples=samples,
        unused=sorted({sequence.id for sequence in sequences} - set(samples)),
        held_out=held_out,
        coverage=share,
        identity=_identity(recipe, target, drafter, rows),
    )


def _features(
    recipe: Recipe, target: Target, rows: Sequence[ResponseRow], drafter: Network, processes: Processes
) -> Features:
    asked, taps, longest = recipe.features, drafter.target_layer_ids, recipe.training.max_length
    if asked.mode == "online":
        online = OnlineFeatures(target, rows, taps, dtype=asked.dtype, max_length=longest)
        if not asked.devices:
            return online
        return FeaturesApart(online, asked.devices[processes.local % len(asked.devices)], asked.ahead or 2)
    return write_features(
        target,
        rows,
        taps,
        asked.folder or recipe.output / "features",
        dtype=asked.dtype,
        max_length=longest,
        max_bytes=int(asked.max_gigabytes * 1e9),
    )


def build_drafter(recipe: Recipe, target: Target, rows: Sequence[ResponseRow]) -> tuple[Network, float]:
    """An untrained drafter (seeded, or as `start_from` left off), and the share of response tokens it can propose.

    Raises:
        ConfigError: no such kind, or a drafter to start from that has other sizes.
        CheckpointError: one that cannot be read, or is not this target's.
    """
    start = starting_point(recipe, target)
    answers = [row.response_ids for row in rows]
    if start is not None and recipe.training.only is not None:
        config, ids = with_confidence(recipe, start, mask_id(target, recipe.drafter.mask_token)), start.draft_ids
    else:
        config, ids = drafter_config(recipe, target), _draft_ids(recipe, target, answers)
    kind = KINDS[recipe.drafter.kind]
    head = target.head_weight.detach().float()
    with torch.random.fork_rng():
        torch.manual_seed(recipe.training.seed)
        if isinstance(config, DSpineConfig):
            drafter: Network = begin(config, target.embedding, head, ids, **recipe.drafter.beginnings())
        elif given := recipe.drafter.beginnings():
            raise ConfigError(f"drafter config: unknown {', '.join(given)}", f"A {kind.title} drafter has none.")
        else:
            drafter = kind.build(config, target.embedding, head, ids)
    drafter = drafter.to(target.device)
    if start is not None:
        take_over(recipe, drafter, start)
    return drafter, 1.0 if ids is None else coverage(answers, ids)


def _draft_ids(recipe: Recipe, target: Target, answers: Sequence[Sequence[int]]) -> Tensor | None:
    size = recipe.drafter.draft_vocabulary
    if size is None:
        return None
    return most_frequent(answers, size, eos_ids=target.eos_ids, vocab_size=target.vocab_size).to(target.device)


def drafter_config(recipe: Recipe, target: Target) -> BackboneConfig:
    """The sizes of the recipe's drafter.

    Raises:
        ConfigError: no such kind, no such mask token, or sizes that do not fit the target.
        CheckpointError: the mask token has another meaning already.
    """
    kind = KINDS.get(recipe.drafter.kind)
    if kind is None:
        raise ConfigError(f"drafter.kind is {recipe.drafter.kind!r}", f"Known: {', '.join(KINDS)}.")
    mask = mask_id(target, recipe.drafter.mask_token)
    return kind.config.for_target(target.facts, mask, **recipe.drafter.sizes())


def mask_id(target: Target, token: str | int) -> int:
    """The id of the mask token, given by name or as an id that the tokenizer need not know.

    Raises:
        ConfigError: the tokenizer does not know the name.
        CheckpointError: it has another meaning already, or no row in the embedding.
    """
    if isinstance(token, int):
        check_mask_token(token, target)
        return token
    vocabulary: dict[str, int] = target.tokenizer.get_vocab()
    if token not in vocabulary:
        raise ConfigError(
            f"drafter.mask_token {token!r} is not a token of {target.name}",
            "Name a special token that the chat template never writes.",
        )
    check_mask_token(vocabulary[token], target)
    return vocabulary[token]


def held_out_prompts(recipe: Recipe, target: Target, trained: Set[str] = frozenset()) -> list[list[int]]:
    """Prompts for measuring tau, in turn from every source, short enough and as the target is asked them.

    Args:
        trained: ids of the responses that are trained on.

    Raises:
        DataError: a held-out prompt is among them, as where the mix was changed after the responses were made.
        ConfigError: none is short enough.
    """
    if not (recipe.data.held_out and recipe.evaluate.prompts):
        return []
    chosen = selection(recipe).held_out
    if leaked := sorted({prompt.id for prompt in chosen} & trained):
        raise DataError(
            f"{len(leaked)} held-out prompts are among the responses to train on ({', '.join(leaked[:3])}, ...): tau "
            "on them would say nothing",
            "Keep data.mix, data.seed and data.held_out as they were when the responses were made, or make them anew.",
        )
    rendered = [render(target, list(prompt.messages), thinking=recipe.data.thinking) for prompt in _in_turn(chosen)]
    short = [ids for ids in rendered if len(ids) <= recipe.data.max_prompt_tokens]
    if not short:
        raise ConfigError(
            f"every one of the {len(rendered)} held-out prompts is longer than data.max_prompt_tokens, "
            f"{recipe.data.max_prompt_tokens}: there is nothing to measure tau on",
            "Raise it, or set evaluate.prompts to 0 to train without measuring.",
        )
    return short[: recipe.evaluate.prompts]


def _in_turn(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The first of every source, the second of every source, ..."""
    seen: dict[str, int] = {}
    turns = []
    for prompt in prompts:
        seen[prompt.source] = seen.get(prompt.source, 0) + 1
        turns.append(seen[prompt.source])
    return [prompts[i] for i in sorted(range(len(prompts)), key=lambda i: turns[i])]


def with_anchors(recipe: Recipe, sequences: Sequence[TrainingSequence], store: Features) -> list[str]:
    """Ids of the sequences that can be trained on, in their order: those of the store with an anchor.

    Raises:
        DataError: none can.
    """
    samples = [s.id for s in sequences if s.id in store.lengths and len(eligible_anchors(torch.tensor(s.loss_mask)))]
    if not samples:
        raise DataError(
            f"no response in {recipe.data.responses} has two tokens in a row to train on",
            "Look at the responses: are they empty, or longer prompts than training.max_length?",
        )
    return samples


def _identity(recipe: Recipe, target: Target, drafter: Network, rows: Sequence[ResponseRow]) -> dict[str, str]:
    """What must agree for a run to go on, by the name that an error gives it."""
    ids = None if drafter.draft_ids is None else drafter.draft_ids.tolist()
    start = recipe.drafter.start_from
    built: list[Any] = [repr(drafter.config), ids] + ([drafter_digest(start)] if start else [])
    if given := recipe.drafter.beginnings():
        built.append(given)
    joined = len(rows) - len(training_sequences(rows))
    training = recipe.training.model_dump(exclude=FREE if recipe.training.only else FREE | {"only"})
    if recipe.features.dtype != "bfloat16":
        training["features"] = recipe.features.dtype
    return {
        "target": target.head_digest,
        "responses": responses_digest(rows) + (f"+{joined}" if joined else ""),
        "drafter": _digest(built),
        "objective": _digest(objective_facts(recipe.drafter.kind, recipe.objective)),
        "training": _digest(training),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
