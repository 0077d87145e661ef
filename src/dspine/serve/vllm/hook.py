"""The one place where vLLM's own code is followed by ours: when a drafter has been given the target's LM head.

One rule: only a DSpine drafter is touched, and it refuses to draft when it was not.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Protocol, runtime_checkable

from vllm.v1.spec_decode.dflash import DFlashProposer


@runtime_checkable
class Attachable(Protocol):
    """A drafter that wants to see its target."""

    def attach(self) -> None: ...


def install() -> None:
    """Have DFlash's proposer attach a DSpine drafter to the target whose tables it was given."""
    given = DFlashProposer._maybe_share_lm_head
    if hasattr(given, "__wrapped__"):
        return

    @wraps(given)
    def share(self: Any, target_language_model: Any) -> None:
        if isinstance(self.model, Attachable):
            self.use_local_argmax_reduction = True  # tokens are asked for, not logits over the vocabulary
        given(self, target_language_model)
        if isinstance(self.model, Attachable):
            self.model.attach()

    DFlashProposer._maybe_share_lm_head = share
