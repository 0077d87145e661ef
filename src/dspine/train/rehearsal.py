"""`dspine train --dry-run`: what a run would find wrong, and what it would take, without training or writing.

One rule: the checks are the run's own (recipe, target, template, mask token, taps, sizes, objective, responses), and
the times are of its own steps, over sequences of all lengths, with a drafter that is thrown away.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dspine.config import Recipe, read_recipe
from dspine.drafter.registry import KINDS
from dspine.errors import DataError
from dspine.target import Target, load_target
from dspine.target.chat import template_digest
from dspine.train.apart import refuse_absent
from dspine.train.features import store_settings
from dspine.train.materials import nothing_to_answer, refuse_unbuilt, selection
from dspine.train.online import OnlineFeatures
from dspine.train.prepare import Prepared, build_drafter, held_out_prompts, with_anchors
from dspine.train.responses import ResponseRow, TrainingSequence, begun, read_responses, training_sequences
from dspine.train.sequences import SequenceBatch
from dspine.train.trackers import refuse_missing
from dspine.train.trainer import Trainer

TIMED = 3  # steps after a first one that is not counted
STATE_BYTES = 16  # of a trained parameter: weight, gradient and two moments, float32


@dataclass(frozen=True)
class Rehearsal:
    """What a run would be. Times are of this machine as it was; bytes are those of one process.

    made_up: no responses are there yet, so sequences of the recipe's longest kind stand in for them.
    target_seconds: of the target's forward for one step's sequences, on this process's device; 0 where a store has been
        written before. apart: a process of its own takes them, while the step before is trained on.
    state_bytes: weights, gradients and moments, unsharded. peak_bytes: of this process while stepping.
    store_bytes: of the feature store on disk; 0 online.
    """

    target: str
    template: str
    mask_token: str
    taps: tuple[int, ...]
    drafter: str
    parameters: int
    candidates: int
    draft_vocabulary: int
    sequences: int
    tokens: int
    made_up: bool
    steps: int
    step_seconds: float
    target_seconds: float
    state_bytes: int
    peak_bytes: int
    store_bytes: int
    device: str
    apart: bool

    @property
    def hours(self) -> float:
        """Of all steps in one training process, measurements and checkpoints left out."""
        both = self.step_seconds, self.target_seconds
        return self.steps * (max(both) if self.apart else sum(both)) / 3600


def rehearse(recipe: str | Path, overrides: Sequence[str] = ()) -> Rehearsal:
    """Check a recipe, and time a few of its steps.

    Raises:
        DspineError: what the run itself would refuse, and for a target that is yet to be built.
    """
    given = read_recipe(recipe, overrides)
    refuse_unbuilt(given)
    refuse_missing(given.training.trackers)
    refuse_absent(given.features.devices)
    target = load_target(given.target, dtype=getattr(torch, given.dtype) if given.dtype else None)
    rows, made_up = _rows(given, target)
    if given.build.prompts is None or given.data.prompts.exists():
        held_out_prompts(given, target, {row.id for row in rows})
    drafter, share = build_drafter(given, target, rows)
    taps, dtype, longest = drafter.target_layer_ids, given.features.dtype, given.training.max_length
    online = OnlineFeatures(target, rows, taps, dtype=dtype, max_length=longest)
    whole = {sequence.id: sequence for sequence in training_sequences(rows, longest)}
    samples = with_anchors(given, list(whole.values()), online)
    sequences = [whole[name] for name in samples]
    prepared = Prepared(given, target, drafter, online, samples, [], [], share)
    trainer = Trainer(prepared, resume=False)
    parts, target_seconds = _parts(trainer, [s.id for s in _spread(sequences, 2 * _micro(given))])
    step_seconds = _seconds(trainer, parts)
    micro_batches = -(-min(given.training.window_samples, len(sequences)) // _micro(given))
    settings = store_settings(target, rows, taps, dtype=dtype, max_length=longest)
    stored = given.features.mode != "online"
    parameters = sum(p.numel() for p in drafter.parameters())
    trained = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    return Rehearsal(
        target=f"{target.name}, {str(target.dtype).removeprefix('torch.')}, head {target.head_digest[:12]}",
        template=(template_digest(target, thinking=given.data.thinking) or "none")[:12],
        mask_token=str(given.drafter.mask_token),
        taps=taps,
        drafter=KINDS[given.drafter.kind].title,
        parameters=parameters,
        candidates=drafter.candidates,
        draft_vocabulary=target.vocab_size if drafter.draft_ids is None else len(drafter.draft_ids),
        sequences=len(sequences),
        tokens=sum(len(sequence.ids) for sequence in sequences),
        made_up=made_up,
        steps=trainer.total,
        step_seconds=step_seconds / len(parts) * micro_batches,
        target_seconds=0.0 if stored else target_seconds / len(parts) * micro_batches,
        state_bytes=STATE_BYTES * trained + 4 * (parameters - trained),
        peak_bytes=_peak(target.device),
        store_bytes=sum(map(settings.bytes_of, sequences)) if stored else 0,
        device=str(target.device),
        apart=bool(given.features.devices),
    )


def _rows(recipe: Recipe, target: Target) -> tuple[list[ResponseRow], bool]:
    """The responses that are there; else random ones of the recipe's longest kind, one a prompt."""
    if begun(recipe.data.responses):
        return read_responses(recipe.data.responses), False
    there = recipe.data.prompts.exists()
    if not there and recipe.build.prompts is None:
        raise nothing_to_answer(recipe)
    count = len(selection(recipe).train) if there else _planned(recipe)
    random = np.random.default_rng(0)
    prompt = min(recipe.data.max_prompt_tokens // 4, recipe.training.max_length // 4)
    answer = max(2, min(recipe.data.max_new_tokens, recipe.training.max_length - prompt))

    def ids(size: int) -> list[int]:
        drawn: list[int] = random.integers(0, target.vocab_size, size).tolist()
        return drawn

    one = ids(prompt + answer)
    return [ResponseRow(f"dry-run/{i}", "", [], one[:prompt], one[prompt:], "length") for i in range(count)], True


def _planned(recipe: Recipe) -> int:
    """How many prompts there will be to train on, once they are built."""
    if recipe.data.mix:
        return sum(entry.count for entry in recipe.data.mix)
    built = recipe.build.prompts
    return (built.count if built is not None else None) or recipe.training.window_samples


def _micro(recipe: Recipe) -> int:
    return min(recipe.training.micro_batch or recipe.training.window_samples, recipe.training.window_samples)


def _spread(sequences: Sequence[TrainingSequence], count: int) -> list[TrainingSequence]:
    """So many sequences of all lengths: every n-th by length."""
    ranked = sorted(sequences, key=lambda sequence: len(sequence.ids))
    places = np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int)
    return [ranked[place] for place in dict.fromkeys(places.tolist())]


def _parts(trainer: Trainer, names: Sequence[str]) -> tuple[list[SequenceBatch], float]:
    """One or two micro-batches, and how long the target took over them."""
    size, store = _micro(trainer.recipe), trainer.prepared.store
    started = time.monotonic()
    groups = [names[at : at + size] for at in range(0, len(names), size)]
    parts = [batch.to(trainer.prepared.target.device) for batch in store.stream(groups)]
    _wait(trainer.prepared.target.device)
    if trainer.setup.window_samples <= size:
        parts = parts[:1]  # a window in one pass, as the run takes it
    return parts, time.monotonic() - started


def _seconds(trainer: Trainer, parts: Sequence[SequenceBatch]) -> float:
    """Of one step over these micro-batches."""
    device = trainer.prepared.target.device
    taken = []
    for step in range(TIMED + 1):
        started = time.monotonic()
        report = trainer.learner.step(parts, trainer.moment(min(step, trainer.total - 1)))
        _wait(device)
        taken.append(time.monotonic() - started)
        if report.bad:
            raise DataError(
                f"a step has no finite loss and gradient (samples {', '.join(report.bad[:8])})",
                "Look at these samples, and at training.precision and the target's dtype.",
            )
    return min(taken[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(device: torch.device) -> int:
    """Most memory held so far: the device's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
