"""Rows of a table, quantised or not.

One rule: only the rows that are asked for are made into floating-point numbers.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx


def rows_of(module: Any, ids: mx.array) -> mx.array:
    """Rows of an embedding's or a linear layer's weight, as floating-point numbers: ids (...) → (..., d)."""
    if not hasattr(module, "scales"):
        return module.weight[ids]
    biases = module.get("biases")
    return mx.dequantize(
        module.weight[ids],
        module.scales[ids],
        None if biases is None else biases[ids],
        group_size=module.group_size,
        bits=module.bits,
        mode=module.mode,
    )
