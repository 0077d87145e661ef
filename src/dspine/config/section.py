"""A part of a recipe.

One rule: it is frozen and knows all its keys.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """What every part of a recipe is made from."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
