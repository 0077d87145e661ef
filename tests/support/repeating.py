"""A random model that repeats itself: what a token is followed by hangs on the token more than on what is before it."""

from __future__ import annotations

import torch
from tests.support.tiny_target import tiny_tokenizer
from transformers import PreTrainedModel

from dspine.target.model import Target
from dspine.target.rollback import Asked

INTO_THE_STREAM = ("o_proj.weight", "out_proj.weight", "down_proj.weight")


@torch.no_grad()
def repeating_target(model: PreTrainedModel, *, share: float = 0.01, rollback: Asked = "auto") -> Target:
    """Our `Target` around a model whose layers are turned down to a share of what they say.

    A share of 0 is a map from token to token, whose greedy text runs in a circle; with more, the circle is left now and
    then.
    """
    for name, weight in model.named_parameters():
        if name.endswith(INTO_THE_STREAM):
            weight.mul_(share)
    return Target(model, tiny_tokenizer(), name="repeating", rollback=rollback)
