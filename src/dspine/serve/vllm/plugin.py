"""What vLLM calls in each of its processes: the entry point of the group `vllm.general_plugins`.

One rule: the names of architectures are registered whatever vLLM this is, and nothing is imported; a vLLM that we were
not tested with is refused where somebody asks for one of them, and every other model is served as without us.
"""

from __future__ import annotations

from vllm import ModelRegistry

MODEL = "dspine.serve.vllm.entry:DSpineDraftModel"
# vLLM puts the method before the name in a drafter's config.json. Those but DFlash are taken to be refused by name.
ARCHITECTURES = (
    "DSpineDraftModel",
    "DFlashDSpineDraftModel",
    "EagleDSpineDraftModel",
    "Eagle3DSpineDraftModel",
)


def register() -> None:
    """Make DSpine drafters known to this process of vLLM."""
    for name in ARCHITECTURES:
        ModelRegistry.register_model(name, MODEL)
