"""What a run delivers: the drafter of the highest held-out tau and the last one, each in a folder with its card.

One rule: the first process measures and writes while the others wait, and a folder tells what its drafter was measured
to do, and from what it was made.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dspine.checkpoint import drafter_digest, save_drafter
from dspine.drafter.dspine import DSpine
from dspine.drafter.registry import Network
from dspine.train.card import write_card
from dspine.train.curriculum import replacement_layers
from dspine.train.journal import Journal
from dspine.train.learner import Learner
from dspine.train.measure import Acceptance, measure_tau
from dspine.train.objectives.choice import objective_facts, objective_for
from dspine.train.prepare import FREE, Prepared
from dspine.train.processes import Processes
from dspine.train.state import Progress


class Delivery:
    """The drafters that a run leaves in its folder.

    Args:
        progress: of the run, as it stands whenever something is delivered; the best tau is noted there.
        warmup: steps, which the folder tells.
    """

    def __init__(
        self, prepared: Prepared, learner: Learner, progress: Progress, processes: Processes, *, warmup: int
    ) -> None:
        self.prepared, self.recipe = prepared, prepared.recipe
        self.learner = learner
        self.progress = progress
        self.processes = processes
        self.warmup = warmup

    def measure(self, journal: Journal) -> tuple[Acceptance | None, bool]:
        """Acceptance of the drafter as it stands, and whether it is the best so far, which is then in `best/`.

        Every process takes part; those that are not the first know nothing of either.
        """
        drafter = self.learner.together.whole()
        if not self.processes.first or drafter is None:
            return None, False
        acceptance = measure_tau(
            self.prepared.target,
            drafter,
            self.prepared.held_out,
            max_new_tokens=self.recipe.evaluate.max_new_tokens,
            objective=objective_for(drafter, self.recipe, torch.float32),
        )
        self._tell(acceptance, journal)
        better = acceptance.tau >= self.progress.best_tau  # of equals the later: a confidence may have learned
        if better:
            self.progress.best_tau, self.progress.best_step = acceptance.tau, self.progress.step
            self._write(drafter, "best", acceptance)
        return acceptance, better

    def last(self, acceptance: Acceptance | None) -> Path:
        """Save the drafter as it stands in `drafter/`; its folder."""
        drafter = self.learner.together.whole()
        if self.processes.first and drafter is not None:
            self._write(drafter, "drafter", acceptance)
        self.processes.wait()
        return self.recipe.output / "drafter"

    def _tell(self, acceptance: Acceptance, journal: Journal) -> None:
        """What was measured, and a warning where generation is not what training saw."""
        gist = f"tau {acceptance.tau:.3f}"
        if acceptance.tau_unrefined is not None:
            gist += f" (without refinement {acceptance.tau_unrefined:.3f})"
        journal.record(self.progress.step, {"acceptance": asdict(acceptance)}, gist)
        journal.say(f"Step {self.progress.step}: {gist} on {acceptance.prompts} held-out prompts, greedy")
        if (first := acceptance.first_place) is not None and first.doubtful:
            journal.say(
                f"warning: the first candidate is right at {first.teacher_forced:.1%} of {first.rounds} places by the "
                f"training forward, and at {first.generated:.1%} of the same places in generation: the two paths "
                "differ. `dspine doctor` looks for the cause."
            )

    def _write(self, drafter: Network, name: str, acceptance: Acceptance | None) -> None:
        """Save a drafter and its card in the folder `name` of the run."""
        folder, facts = self.recipe.output / name, self._facts(acceptance)
        save_drafter(
            drafter.eval(),
            folder,
            target=self.prepared.target,
            training=facts,
            thinking=self.recipe.data.thinking,
            dtype=_format(drafter),
        )
        write_card(self.prepared, folder, facts)

    def _facts(self, acceptance: Acceptance | None) -> dict[str, Any]:
        """What the finished drafter's folder tells of its training."""
        drafter = self.learner.drafter
        start = self.recipe.drafter.start_from
        heard = replacement_layers(self.recipe.objective, drafter.config) if isinstance(drafter, DSpine) else None
        return {
            "steps": self.progress.step,
            "skipped_steps": self.progress.skipped,
            "broken_samples": self.progress.broken,
            "samples": len(self.prepared.samples),
            "blocks": self.progress.blocks,
            "labels": self.progress.tokens,
            "minutes": round(self.progress.seconds / 60, 1),
            "warmup_steps": self.warmup,
            "draft_vocabulary_coverage": round(self.prepared.coverage, 4),
            "responses_digest": self.prepared.identity["responses"],
            "acceptance": None if acceptance is None else asdict(acceptance),
            **objective_facts(self.recipe.drafter.kind, self.recipe.objective),
            **({} if heard is None else {"replacement_layers": heard}),
            **({} if start is None else {"start_from": drafter_digest(start)}),
            **self.recipe.drafter.beginnings(),
            **self.recipe.training.model_dump(mode="json", exclude=FREE | {"steps", "epochs"}, exclude_none=True),
        }


def _format(drafter: Network) -> torch.dtype:
    """What a drafter is saved in: bfloat16, unless that would change weights that are not trained."""
    frozen = [parameter for parameter in drafter.parameters() if not parameter.requires_grad]
    exact = all(torch.equal(parameter, parameter.bfloat16().to(parameter.dtype)) for parameter in frozen)
    return torch.bfloat16 if exact else torch.float32
