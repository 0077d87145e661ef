"""Importing torch and transformers, and loading models.

One rule: no garbage collection meanwhile, and none of what was made then. Both make millions of objects that stay;
looking through them again and again takes about a fifth of the start-up.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in the block, and take nothing that is there at its end for garbage later."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
