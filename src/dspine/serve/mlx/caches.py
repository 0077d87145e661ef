"""Taking tokens back from mlx-lm's caches.

One rule: of a round's tokens those that fell are the newest, and they go; a cache that cannot give them back is refused
by name before anything runs. A rotating cache overwrites its oldest slot where one token comes at a time, but takes in
several at its end, oldest first, with all that the first of them sees: so what a block has brought can be cut off
again, though the cache has long been full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import KVCache, RotatingKVCache

from dspine.errors import TargetError


def check_caches(caches: Sequence[Any], name: str) -> None:
    """Refuse caches that cannot be rolled back.

    Raises:
        TargetError: naming their kinds and layers.
    """
    wrong: dict[str, list[int]] = {}
    for layer, cache in enumerate(caches):
        if type(cache) not in (KVCache, RotatingKVCache):
            wrong.setdefault(type(cache).__name__, []).append(layer)
    if wrong:
        found = "; ".join(f"{kind} (cache {', '.join(map(str, layers))})" for kind, layers in wrong.items())
        raise TargetError(
            f"{name}: rejected candidates cannot be taken back from {found}",
            "With a drafter the mlx backend serves models whose layers all keep full or rotating attention caches; "
            "decode plainly (--no-drafter), or take a model without recurrent layers.",
        )


def take_back(caches: Sequence[Any], written: int, kept: int) -> None:
    """Leave the first `kept` (at least 1) of the `written` tokens that the last forward brought."""
    fallen = written - kept
    if not fallen:
        return
    for cache in caches:
        if isinstance(cache, RotatingKVCache):
            cache.keys = cache.keys[..., :-fallen, :]
            cache.values = cache.values[..., :-fallen, :]
        cache.trim(fallen)


def arrays(caches: Sequence[Any]) -> list[Any]:
    """What has to be evaluated for the caches to hold what was written."""
    return [cache.state for cache in caches]
