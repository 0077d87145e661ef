"""The folder of the user in which things are kept that were dear to make: prepared targets, codes, tables of costs.

One rule: whatever lies there can be made again; who finds it missing or damaged makes it anew.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$DSPINE_CACHE, or ~/.cache/dspine."""
    return Path(os.environ.get("DSPINE_CACHE") or "~/.cache/dspine").expanduser()
