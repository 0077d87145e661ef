"""Which objective a kind of drafter is trained with, and its weights out of a recipe.

One rule: a weight that the objective does not know is refused, never ignored; one that is not given is its authors'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import torch

from dspine.config import ObjectiveRecipe, Recipe
from dspine.drafter.dspine import DSpine
from dspine.drafter.eagle3 import Eagle3
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.registry import KINDS, Network, kind_of
from dspine.errors import ConfigError
from dspine.train.curriculum import replacement_layers
from dspine.train.objectives.dflash import DFlashObjective, DFlashWeights
from dspine.train.objectives.dflash2 import DFlash2Objective, DFlash2Weights
from dspine.train.objectives.domino import DominoObjective, DominoWeights
from dspine.train.objectives.dspark import DSparkObjective, DSparkWeights
from dspine.train.objectives.dspine import DSpineObjective, Weights
from dspine.train.objectives.eagle3 import Eagle3Objective, Eagle3Weights
from dspine.train.objectives.objective import Objective

_WEIGHTS: dict[str, type[DFlashWeights | DFlash2Weights | DominoWeights | DSparkWeights | Eagle3Weights]] = {
    "dflash": DFlashWeights,
    "dflash2": DFlash2Weights,
    "domino": DominoWeights,
    "dspark": DSparkWeights,
    "eagle3": Eagle3Weights,
}
_PARALLEL: dict[str, Callable[..., Objective]] = {
    "dflash": DFlashObjective,
    "dflash2": DFlash2Objective,
    "domino": DominoObjective,
    "dspark": DSparkObjective,
}
# A recipe's objective is DSpine's where it has a default.
_DSPINE = [name for name, field in ObjectiveRecipe.model_fields.items() if field.default is not None]
_DSPINE.append("replacement_layers")  # whose default depends on the drafter


def objective_for(drafter: Network, recipe: Recipe, precision: torch.dtype) -> Objective:
    """The objective of a drafter.

    Args:
        precision: of the big matrix products.
    """
    goal = recipe.objective
    match drafter:
        case DSpine():
            weights = Weights(goal.ce_weight, goal.gamma, goal.candidate_mass_threshold, goal.alignment, goal.chunk)
            return DSpineObjective(
                drafter,
                weights,
                precision=precision,
                seed=recipe.training.seed,
                replaced_layers=replacement_layers(goal, drafter.config),
            )
        case Eagle3():
            return Eagle3Objective(drafter, Eagle3Weights(**goal.given()), precision=precision)
        case ParallelDrafter():
            kind = kind_of(drafter)
            return _PARALLEL[kind](drafter, _WEIGHTS[kind](**goal.given()), precision=precision)


def objective_facts(kind: str, goal: ObjectiveRecipe) -> dict[str, Any]:
    """The weights that a kind is trained with, as numbers to write down; `chunk`, which changes none, left out.

    Raises:
        ConfigError: the recipe gives a weight that this objective does not know.
    """
    weights = _WEIGHTS.get(kind)
    known = [field.name for field in fields(weights)] if weights else _DSPINE
    if unknown := sorted(goal.given().keys() - set(known)):
        raise ConfigError(
            f"objective: a {KINDS[kind].title} drafter's has no {', '.join(unknown)}", f"It has {', '.join(known)}."
        )
    facts = asdict(weights(**goal.given())) if weights else goal.settled().model_dump(mode="json", include=set(known))
    return {name: value for name, value in facts.items() if name != "chunk" and value is not None}
