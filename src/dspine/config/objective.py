"""What a drafter is trained for: weights, and the switches of layer supervision and curriculum.

One rule: nothing is given that a switch makes meaningless. Defaults are the paper's (DSpine, arXiv 2609.36173).
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dspine.config.section import Section


class ObjectiveRecipe(Section):
    """Weights of the objective and of the curriculum: DSpine's with their defaults, and what other kinds have.

    Where another kind is trained, what is not given is as its authors have it, and what it does not know is refused.
    """

    ce_weight: float = Field(default=0.1, ge=0, le=1)  # α
    gamma: float = Field(default=7.0, gt=0)
    alignment: Literal["cosine", "token", "none"] = (
        "cosine"  # what every layer is held to: the code, the token, nothing
    )
    alignment_weight: float = Field(default=0.5, ge=0)  # β after its warm-up
    candidate_mass_threshold: float = Field(default=1e-4, ge=0)
    replacement: Literal["curriculum", "always", "never"] = "curriculum"  # when layers hear the correct predecessors
    replacement_layers: int | None = Field(default=None, gt=0)  # so many, from the first; not given: 3 of 5, or all
    replacement_probability: float = Field(default=0.5, ge=0, le=1)
    replacement_hold_ratio: float = Field(default=1 / 6, ge=0, le=1)
    replacement_end_ratio: float = Field(default=1 / 3, ge=0, le=1)
    chunk: int = Field(default=1024, gt=0)  # rows whose vocabulary-sized numbers exist at once
    dpace: float | None = Field(default=None, ge=0, le=1)  # dflash: α of D-PACE's weights in place of the decay's
    base_share: float | None = Field(default=None, ge=0, le=1)  # domino: λ at the start
    base_share_end_ratio: float | None = Field(default=None, gt=0)  # domino: share of the run at which λ is 0
    l1_weight: float | None = Field(default=None, ge=0)  # dspark
    confidence_weight: float | None = Field(default=None, ge=0)  # dspark
    selector_weight: float | None = Field(default=None, ge=0)  # dflash2
    step_decay: float | None = Field(default=None, gt=0, le=1)  # eagle3: weight of a draft step over the one before

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.replacement_end_ratio < self.replacement_hold_ratio:
            raise ValueError("replacement_end_ratio is smaller than replacement_hold_ratio")
        return self

    @model_validator(mode="after")
    def _heeded(self) -> Self:
        """Nothing is given that a switch makes meaningless."""
        curriculum = {"replacement_probability", "replacement_hold_ratio", "replacement_end_ratio"}
        idle = {"alignment_weight"} if self.alignment == "none" else set()
        idle |= curriculum if self.replacement != "curriculum" else set()
        idle |= {"replacement_layers"} if self.replacement == "never" else set()
        if given := sorted(idle & self.given().keys()):
            switches = f"alignment {self.alignment} and replacement {self.replacement}"
            raise ValueError(f"{', '.join(given)} would change nothing with {switches}")
        return self

    def settled(self) -> ObjectiveRecipe:
        """The same with the numbers of the schedules as the switches `alignment` and `replacement` make them."""
        numbers: dict[str, float] = {"alignment_weight": 0.0} if self.alignment == "none" else {}
        if self.replacement != "curriculum":
            always = float(self.replacement == "always")
            numbers |= {"replacement_probability": always}
            numbers |= {"replacement_hold_ratio": always, "replacement_end_ratio": always}
        return self.model_copy(update=numbers)

    def given(self) -> dict[str, Any]:
        """What the recipe says itself."""
        return self.model_dump(exclude_unset=True, exclude_none=True)
