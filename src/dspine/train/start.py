"""Starting from another drafter: from its weights alone, or, where only a confidence is trained, from all that it is.

One rule: whatever differs between the two drafters is refused by name. Where only the confidence head is trained, the
sizes and the draft vocabulary are the other drafter's too, so that the new one proposes what that one did, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from dspine.checkpoint import load_drafter
from dspine.config import Recipe
from dspine.drafter import KINDS, DSpine, Network, kind_of
from dspine.drafter.config import BackboneConfig
from dspine.drafter.registry import confidence_head_of
from dspine.errors import ConfigError
from dspine.target import Target


def starting_point(recipe: Recipe, target: Target) -> Network | None:
    """The drafter that a recipe starts from; None where it starts from nothing.

    Raises:
        ConfigError: it is of another kind, or brings what the recipe chooses.
        CheckpointError: it cannot be read, or is not this target's.
    """
    name = recipe.drafter.start_from
    if name is None:
        return None
    if given := recipe.drafter.beginnings():
        raise ConfigError(
            f"drafter.start_from brings what {' and '.join(given)} would choose", "Give the one or the other."
        )
    start = load_drafter(name, target, dtype=torch.float32, packed=False)
    if kind_of(start) != recipe.drafter.kind:
        raise ConfigError(
            f"drafter.start_from {name} is a {KINDS[kind_of(start)].title} drafter",
            "Name one of this recipe's kind, or leave start_from out.",
        )
    return start


def with_confidence(recipe: Recipe, start: Network, mask_id: int) -> BackboneConfig:
    """The sizes of `start`, with a confidence head.

    Raises:
        ConfigError: the recipe gives sizes that are not those.
    """
    sizes = {"confidence": True, "mask_token_id": mask_id, **recipe.drafter.sizes()}
    _refuse(recipe, {**asdict(start.config), "confidence": True}, sizes)
    return replace(start.config, confidence=True)


def take_over(recipe: Recipe, drafter: Network, start: Network) -> None:
    """Give a drafter the weights of `start`; where only the confidence is trained, all but a head that `start` lacks.

    Raises:
        ConfigError: it has other sizes.
    """
    whole = recipe.training.only is None
    if whole:
        _refuse(recipe, asdict(start.config), asdict(drafter.config))
    drafter.load_state_dict(start.state_dict(), strict=whole)
    if isinstance(drafter, DSpine) and isinstance(start, DSpine):
        drafter.space = start.space  # the very one it was trained with


def freeze_all_but_confidence(drafter: Network) -> None:
    """Let nothing but the confidence head be trained."""
    head: nn.Module | None = confidence_head_of(drafter)
    assert head is not None  # see `with_confidence`
    drafter.requires_grad_(False)
    head.requires_grad_(True)


def _refuse(recipe: Recipe, theirs: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if differing := [f"{name} ({theirs[name]})" for name, value in asked.items() if theirs.get(name) != value]:
        raise ConfigError(
            f"drafter.start_from {recipe.drafter.start_from} has another {', '.join(differing)}",
            "Give this recipe the same sizes, or leave start_from out.",
        )
