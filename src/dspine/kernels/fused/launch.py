"""What every kernel's launch needs: its choices of block sizes, and whether it runs in Triton's interpreter.

One rule: block sizes are chosen by measuring, once for each shape of weights, and the choice is kept on disk; never
by the number of rows, so that a row's result does not depend on how many others are drafted beside it.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

# Whether kernels run on the CPU, step by step: TRITON_INTERPRET=1 in the environment before this is imported.
INTERPRETED: bool = bool(triton.knobs.runtime.interpret)


def tuned(configs: list[Any], key: list[str]) -> Any:
    """`triton.autotune` of `configs` by the arguments in `key`; the interpreter measures none, and takes the first."""
    return triton.autotune(configs=configs[:1] if INTERPRETED else configs, key=key, cache_results=not INTERPRETED)


def dense_rows(x: Tensor) -> Tensor:
    """x with neighbours of the last dimension side by side; the other strides stay what they are."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def power(size: int, least: int = 1) -> int:
    """The smallest power of two that is at least `size` and `least`."""
    return max(least, int(triton.next_power_of_2(size)))
