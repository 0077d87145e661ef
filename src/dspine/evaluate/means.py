"""By what means rounds were run, as far as somebody chose: part of what a result depends on.

One rule: what is forced is told; "auto" is what stands where nothing is said, so that it keeps its names and heads.
"""

from __future__ import annotations

from dspine.kernels.choice import Choice
from dspine.kernels.recording import Capture


def forced_means(kernels: Choice, capture: Capture) -> dict[str, str]:
    """Kernels and capture by their names, where either is not "auto"."""
    return {name: each for name, each in (("kernels", kernels), ("capture", capture)) if each != "auto"}
