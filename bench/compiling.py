"""The parts of a network that `torch.compile` takes without seeing a cache: norms and MLPs, functions of a row.

One rule: in place, so that whoever runs the network runs what was compiled.
"""

from __future__ import annotations

from torch import nn


def compile_rows(network: nn.Module, backend: str) -> int:
    """Compile norms and MLPs where they are, for any number of rows; returns how many modules that is."""
    chosen = [module for module in network.modules() if type(module).__name__.endswith(("RMSNorm", "MLP"))]
    for module in chosen:
        module.compile(backend=backend, dynamic=True)
    return len(chosen)
