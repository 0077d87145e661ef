"""The variants of an ablation: names for settings of a recipe that change one thing of the method.

One rule: a variant says all that it changes, as `--set` would; whatever else a recipe says holds for every variant.
Source: DSpine (arXiv 2609.36173), ablations; those that the paper does not have are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspine.config import Recipe
from dspine.drafter.config import BackboneConfig
from dspine.errors import ConfigError

FULL = "full"
EVERY = "all"
_NEVER = "objective.replacement=never"


@dataclass(frozen=True)
class Variant:
    """A name, what it changes in words, and as "section.key=value"."""

    name: str
    says: str
    overrides: tuple[str, ...]


def variants(recipe: Recipe) -> dict[str, Variant]:
    """All that a recipe knows, by name: the project's and its own (`ablation` of the recipe)."""
    layers = recipe.drafter.num_hidden_layers or BackboneConfig.num_hidden_layers
    shallow, last = list(range(layers - 1)), [layers - 1]
    known = [
        Variant(FULL, "the recipe as it is", ()),
        Variant("no-refinement", "each place proposes its ordinary output", ("drafter.refined=false",)),
        Variant(
            "no-injection",
            "neither injection nor refinement: the block-causal backbone",
            ("drafter.injected_layers=[]", "drafter.refined=false", _NEVER),
        ),
        Variant(
            "tokens-only", "nothing is heard but the anchor and chosen tokens", ("drafter.predecessor=none", _NEVER)
        ),
        Variant("no-gate", "the message counts in full", ("drafter.gated=false",)),
        Variant("reach-2", "two places before are heard", ("drafter.reach=2",)),
        Variant("both-ways", "rows of a block see each other both ways", ("drafter.is_causal=false", _NEVER)),
        Variant("no-curriculum", "no correct predecessors", (_NEVER,)),
        Variant("correct-predecessors", "correct ones in every layer, to the end", ("objective.replacement=always",)),
        Variant("no-alignment", "layers are not supervised", ("objective.alignment=none",)),
        Variant("token-alignment", "layers are held to the token", ("objective.alignment=token",)),
        Variant("no-whitening", "codes are not whitened", ("drafter.whitening=false",)),
        Variant("random-readouts", "readouts start as any matrix", ("drafter.readout_init=random",)),
    ]
    if shallow:
        known += [
            Variant("last-layer", "injection after the last layer alone", (f"drafter.injected_layers={last}", _NEVER)),
            Variant(
                "shallow-layers",
                "injection after all layers but the last, without refinement",
                (f"drafter.injected_layers={shallow}", "drafter.refined=false"),
            ),
        ]
    found = {variant.name: variant for variant in known}
    return found | {name: Variant(name, "", overrides) for name, overrides in recipe.ablation.items()}


def chosen(recipe: Recipe, names: Sequence[str]) -> list[Variant]:
    """The variants of these names, each once; "all" stands for every one. `full` comes first, whether named or not.

    Raises:
        ConfigError: an unknown name, or a recipe of another kind of drafter.
    """
    if recipe.drafter.kind != "dspine":
        raise ConfigError(
            f"the variants of an ablation are DSpine's, and the recipe trains a drafter of kind {recipe.drafter.kind}",
            "Leave drafter.kind out.",
        )
    known = variants(recipe)
    if unknown := [name for name in names if name != EVERY and name not in known]:
        raise ConfigError(
            f"no variant {', '.join(unknown)}",
            f"Known: {', '.join(known)}. Another one: a key of the recipe's `ablation`, with its list of settings.",
        )
    wanted = known if EVERY in names else dict.fromkeys((FULL, *names))
    return [known[name] for name in wanted]
