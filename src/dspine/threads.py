"""Thread settings that must stand before torch is imported.

Its one rule: an explicit setting of the user wins. OpenMP reads these variables once, when it is loaded, and
its default lets idle threads spin; on a small or shared machine the spinning threads of one process take the
cores from the working ones and everything becomes many times slower.
"""

from __future__ import annotations

import os
import sys


def usable_cores() -> int:
    """Number of cores that this process may run on, at least 1; a container may allow fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def settle_threads() -> bool:
    """Set OMP_NUM_THREADS and OMP_WAIT_POLICY where the user has not; False when torch is already imported.

    After torch's import OpenMP has read its variables and a change would only mislead child processes, so
    nothing is set.
    """
    if "torch" in sys.modules:
        return False
    os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return True
