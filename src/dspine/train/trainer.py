"""Training a drafter from a recipe: the loop, its checkpoints, its log and its end.

One rule: nothing is lost. A run that is interrupted, killed or out of disk goes on from its last checkpoint when
the same command is given again, and reaches the same numbers. Source: DSpine (arXiv 2609.36173), training.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from dspine.config import Recipe, TrainingRecipe, read_recipe
from dspine.drafter.eagle3 import Eagle3
from dspine.errors import ConfigError, DataError
from dspine.train.curriculum import alignment_weight, learning_rate, replacement_probability, warmup_steps
from dspine.train.delivery import Delivery
from dspine.train.interrupt import StopRequest
from dspine.train.journal import Journal
from dspine.train.learner import Learner, StepReport
from dspine.train.measure import Acceptance
from dspine.train.objectives.choice import objective_for
from dspine.train.objectives.objective import Moment
from dspine.train.prepare import Prepared, prepare
from dspine.train.processes import ALONE, Processes, join
from dspine.train.start import freeze_all_but_confidence
from dspine.train.state import Progress, checkpoints, load_state, save_state
from dspine.train.trackers import Trackers
from dspine.train.windows import epoch_windows, windows_per_epoch


@dataclass(frozen=True)
class Summary:
    """How a call of `train` ended.

    drafter: folder of the finished drafter; None when the run was interrupted (call again to go on).
    acceptance: on held-out prompts, where the recipe measures it.
    """

    finished: bool
    drafter: Path | None
    progress: Progress
    total: int
    samples: int
    unused: int
    acceptance: Acceptance | None


def train(recipe: str | Path, overrides: Iterable[str] = (), *, resume: bool = True) -> Summary:
    """Train the drafter that a recipe describes, and save it in `<output>/drafter`.

    Args:
        recipe: a YAML file; overrides: "section.key=value" each.
        resume: go on from the newest checkpoint of the run; False: begin anew (old checkpoints are removed).

    Raises:
        DspineError: anything wrong with recipe, data, target or disk, with what to do about it.
    """
    processes = join()
    with processes.in_turn():
        prepared = prepare(read_recipe(recipe, overrides), processes)
    return Trainer(prepared, resume=resume, processes=processes).run()


class Trainer:
    """The loop over optimiser steps of one prepared run."""

    def __init__(self, prepared: Prepared, *, resume: bool, processes: Processes = ALONE) -> None:
        self.prepared = prepared
        self.processes = processes
        self.recipe: Recipe = prepared.recipe
        self.setup: TrainingRecipe = prepared.recipe.training
        self.folder = prepared.recipe.output / "checkpoints"
        self.learner = make_learner(prepared, processes)
        self.per_epoch = windows_per_epoch(len(prepared.samples), self.setup.window_samples)
        self.total = self.setup.steps or (self.setup.epochs or 0) * self.per_epoch
        self.warmup = warmup_steps(self.total, self.setup.warmup_ratio)
        self.anew = not resume
        self.progress = self._resume() if resume else Progress()
        self.delivery = Delivery(prepared, self.learner, self.progress, processes, warmup=self.warmup)
        self._bad_in_a_row = 0
        self._windows = lru_cache(maxsize=2)(self._windows_of)  # batches that are made ahead may be of the next epoch
        self._batches = prepared.store.stream(self._asked())

    def run(self) -> Summary:
        """Train to the end, or to an interrupt; both leave a checkpoint."""
        self.recipe.output.mkdir(parents=True, exist_ok=True)
        with self._journal() as journal, closing(self._batches):  # the folder is this run's alone from here on
            if self.anew and self.processes.first:
                for old in checkpoints(self.folder):
                    old.unlink()
            self._greet(journal)
            saved = time.monotonic()
            with StopRequest() as stop:
                # Clocks and signals differ from process to process: what is decided by them is decided for all.
                while self.progress.step < self.total and not self.processes.any(stop.asked):
                    if self._measures_now():
                        self._measure(journal)
                        continue
                    self._advance(journal)
                    late = time.monotonic() - saved > 60 * self.setup.save_minutes
                    if self.progress.step % self.setup.save_steps == 0 or self.processes.any(late):
                        self.save()
                        saved = time.monotonic()
            self.save()
            if self.progress.step < self.total:
                journal.say(f"Interrupted at step {self.progress.step}; give the same command again to go on.")
                return self._summary(None, None)
            acceptance = self._measure(journal) if self.prepared.held_out else None
            drafter = self.delivery.last(acceptance)
            journal.say(f"The drafter is in {drafter}.")
        return self._summary(drafter, acceptance)

    def _journal(self) -> Journal:
        """The log of the first process, with its trackers; the others say nothing."""
        step, folder = self.progress.step, self.recipe.output
        if not self.processes.first:
            return Journal(None, step=step, total=self.total)
        settings = self.recipe.model_dump(mode="json")
        trackers = Trackers(self.setup.trackers, folder, settings, step=step)
        return Journal(folder / "log.jsonl", step=step, total=self.total, trackers=trackers)

    def moment(self, step: int) -> Moment:
        """What the schedules say at a step (from 0)."""
        goal = self.recipe.objective.settled()
        # A confidence is of drafts as they are made, and then nobody knows the correct predecessors.
        replaced = goal.replacement_probability if self.setup.only is None else 0.0
        return Moment(
            step=step,
            epoch=step // self.per_epoch,
            learning_rate=learning_rate(step, peak=self.setup.learning_rate, total=self.total, warmup=self.warmup),
            beta=alignment_weight(step, peak=goal.alignment_weight, warmup=self.warmup),
            replacement=replacement_probability(
                step,
                total=self.total,
                probability=replaced,
                hold=goal.replacement_hold_ratio,
                end=goal.replacement_end_ratio,
            ),
            progress=step / self.total,
        )

    def save(self) -> None:
        """Write a checkpoint: whole, whatever the processes share out."""
        together = self.learner.together
        weights, moments = together.weights(), together.moments(self.learner.optimizer)
        if self.processes.first:
            save_state(self.folder, self.progress, weights, moments, self.prepared.identity, self.setup.keep)

    def _resume(self) -> Progress:
        found = load_state(self.folder, self.prepared.identity)
        if found is None:
            return Progress()
        progress, weights, moments = found
        self.learner.together.load(weights, self.learner.optimizer, moments)
        return progress

    def _advance(self, journal: Journal) -> None:
        """One optimiser step."""
        started = time.monotonic()
        moment = self.moment(self.progress.step)
        device = self.prepared.target.device
        parts = [next(self._batches).to(device) for _ in self.window(self.progress.step)]
        self.learner.drafter.train()
        report = self.learner.step(parts, moment)
        broken = torch.tensor(sum(len(part.skipped) for part in parts))
        seconds = time.monotonic() - started
        self.progress.step += 1
        self.progress.blocks += report.blocks
        self.progress.tokens += report.tokens
        self.progress.seconds += seconds
        self.progress.broken += int(self.processes.total(broken))
        schedule = self.learner.objective.schedule(moment)
        journal.record(self.progress.step, _line(moment, schedule, report, seconds), _gist(report, seconds))
        self._guard(report, journal)

    def _guard(self, report: StepReport, journal: Journal) -> None:
        """Count a skipped step, and end a run that has nothing but those."""
        if not report.bad:
            self._bad_in_a_row = 0
            return
        self.progress.skipped += 1
        self._bad_in_a_row += 1
        named = ", ".join(report.bad[:8]) + (", ..." if len(report.bad) > 8 else "")
        journal.say(f"Step {self.progress.step} skipped: loss or gradient is not finite. Samples: {named}")
        if self._bad_in_a_row >= self.setup.bad_steps:
            raise DataError(
                f"{self._bad_in_a_row} steps in a row had no finite loss and gradient (last: step "
                f"{self.progress.step}, samples {named})",
                "Lower training.learning_rate, or look at these samples; the last checkpoint is good.",
            )

    def window(self, step: int) -> list[list[str]]:
        """This process's sequences of a step (from 0), in micro-batches: it may have none.

        Lengths ascend in a window, so every n-th sequence is about as long as every other n-th.
        """
        window = self._windows(step // self.per_epoch)[step % self.per_epoch]
        names = [self.prepared.samples[index] for index in window[self.processes.rank :: self.processes.count]]
        size = self.setup.micro_batch or max(1, len(names))
        return [names[at : at + size] for at in range(0, len(names), size)]

    def _windows_of(self, epoch: int) -> list[list[int]]:
        lengths = [self.prepared.store.lengths[name] for name in self.prepared.samples]
        return epoch_windows(lengths, self.setup.window_samples, seed=self.setup.seed, epoch=epoch)

    def _asked(self) -> Iterator[list[str]]:
        """The micro-batches of all steps that are left."""
        for step in range(self.progress.step, self.total):
            yield from self.window(step)

    def _measures_now(self) -> bool:
        """Whether tau is due at this step and was not measured yet, as where a run was killed before it was."""
        every, step = self.recipe.evaluate.every_steps, self.progress.step
        return bool(every and self.prepared.held_out and step and step % every == 0 and step != self.progress.measured)

    def _measure(self, journal: Journal) -> Acceptance | None:
        acceptance, better = self.delivery.measure(journal)
        self.progress.measured = self.progress.step
        # A run that goes on knows what was measured and what the best one reached. The others wait here for the first.
        if self.processes.any(better) or self.progress.step < self.total:
            self.save()
        return acceptance

    def _greet(self, journal: Journal) -> None:
        count = sum(p.numel() for p in self.learner.drafter.parameters() if p.requires_grad)
        sizes = f"{count / 1e6:.1f}M parameters" if self.setup.only is None else f"the confidence's {count} parameters"
        if self.processes.count > 1:
            sizes += f", {'shared out over' if self.setup.sharded else 'in each of'} {self.processes.count} processes,"
        unused = f", {len(self.prepared.unused)} without an anchor" if self.prepared.unused else ""
        journal.say(
            f"Training {sizes} on {len(self.prepared.samples)} sequences{unused}: {self.total} steps of "
            f"{self.setup.window_samples} sequences; the draft vocabulary holds {self.prepared.coverage:.2%} of "
            f"the response tokens"
        )
        if self.progress.step:
            journal.say(f"Going on from step {self.progress.step}.")

    def _summary(self, drafter: Path | None, acceptance: Acceptance | None) -> Summary:
        return Summary(
            finished=drafter is not None,
            drafter=drafter,
            progress=self.progress,
            total=self.total,
            samples=len(self.prepared.samples),
            unused=len(self.prepared.unused),
            acceptance=acceptance,
        )


def make_learner(prepared: Prepared, processes: Processes = ALONE) -> Learner:
    """The learner of a prepared run, one of several where processes share it."""
    recipe = prepared.recipe
    precision = torch.bfloat16 if recipe.training.precision == "bfloat16" else torch.float32
    if recipe.training.recompute:
        if isinstance(prepared.drafter, Eagle3):
            raise ConfigError(
                "training.recompute: EAGLE-3's layer attends to its own earlier steps, so none is run again alone",
                "Leave it out, and lower training.micro_batch where memory is short.",
            )
        prepared.drafter.backbone.recompute = True
    if recipe.training.only is not None:
        freeze_all_but_confidence(prepared.drafter)
    return Learner(
        prepared.drafter,
        objective_for(prepared.drafter, recipe, precision),
        clip=recipe.training.clip,
        anchors_per_sample=recipe.training.anchors_per_sample,
        precision=precision,
        seed=recipe.training.seed,
        processes=processes,
        sharded=recipe.training.sharded,
    )


def _line(moment: Moment, schedule: dict[str, float], report: StepReport, seconds: float) -> dict[str, Any]:
    return {
        "loss": report.loss,
        **report.means,
        "learning_rate": moment.learning_rate,
        **schedule,
        "gradient_norm": report.gradient_norm,
        "match_by_place": [round(share, 4) for share in report.match],
        "acceptance_by_place": [None if share is None else round(share, 4) for share in report.acceptance],
        "blocks": report.blocks,
        "tokens": report.tokens,
        "seconds": round(seconds, 4),
        **({"skipped": list(report.bad)} if report.bad else {}),
    }


def _gist(report: StepReport, seconds: float) -> str:
    labels = {"ce": "CE", "base_ce": "base CE", "l1": "ℓ1", "refined_l1": "refined ℓ1"}
    labels |= {"selector_ce": "selector CE", "recall": "recall", "ce_1": "CE of step 1"}
    labels |= {"confidence": "confidence"}
    shown = [f"{label} {report.means[name]:.3f}" for name, label in labels.items() if name in report.means]
    return "  ".join([*shown, f"{seconds:.2f} s"])
