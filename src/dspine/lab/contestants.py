"""The drafters of a comparison, trained at an equal budget.

One rule: an equal budget is the same answers in the same order, the same steps, the same backbone and depth, the same
number of candidates a round, all of them verified. What a method brings along besides (a head, a selector, its own
objective) is its own; its parameters and its training time are said beside its tau, not held equal.
EAGLE-3 has one layer by its nature and trains at every position, so its depth and its supervision are other ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspine.checkpoint import load_drafter
from dspine.drafter.registry import KINDS, Network, kind_of
from dspine.errors import ConfigError
from dspine.target import Target
from dspine.train.ablation_table import Run, Table
from dspine.train.variants import FULL

KIND_OF_FULL = "dspine"  # what the command calls the recipe's own drafter, which an ablation calls full


@dataclass(frozen=True)
class Contestant:
    """A method with one seed, trained.

    title: as its authors write it, or the recipe's name for a variant of it.
    parameters: numbers that were trained; the target's tables, which a drafter borrows, are not among them.
    """

    title: str
    seed: int
    folder: Path
    digest: str
    parameters: int
    steps: int
    minutes: float


def contestants(table: Table, target: Target) -> list[Contestant]:
    """The drafters that an ablation's runs have left, a method after the other, by seed.

    Raises:
        ConfigError: methods that propose other numbers of candidates, which no budget makes equal.
        CheckpointError: a drafter that cannot be read.
    """
    found, candidates = [], {}
    for line in table.lines:
        for run in line.runs:
            network = network_of(run.drafter, target)
            found.append(_contestant(run, network))
            candidates[found[-1].title] = network.candidates
    if len(set(candidates.values())) > 1:
        listed = ", ".join(f"{title} {count}" for title, count in candidates.items())
        raise ConfigError(f"the drafters propose different numbers of candidates: {listed}", "Set their block_size.")
    return found


def network_of(folder: str | Path, target: Target) -> Network:
    """A drafter as it was trained, its weights readable."""
    return load_drafter(str(folder), target, packed=False)


def names_of(recipe_names: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    """The variants to train: those of a recipe that are wanted (None: all), `dspine` standing for the recipe itself.

    Raises:
        ConfigError: a name that the recipe does not have.
    """
    known = [KIND_OF_FULL, *recipe_names]
    if wanted is None:
        return [FULL, *recipe_names]
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(f"this recipe has no drafter {', '.join(unknown)}", f"It has {', '.join(known)}.")
    return [FULL if name == KIND_OF_FULL else name for name in dict.fromkeys(wanted)]


def _contestant(run: Run, network: Network) -> Contestant:
    return Contestant(
        title=KINDS[kind_of(network)].title if run.variant in (FULL, kind_of(network)) else run.variant,
        seed=run.seed,
        folder=Path(run.drafter),
        digest=run.drafter_digest,
        parameters=sum(tensor.numel() for tensor in network.state_dict().values()),
        steps=run.steps,
        minutes=run.minutes,
    )
