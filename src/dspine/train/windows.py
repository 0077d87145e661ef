"""Which sequences an optimiser step sees.

One rule: a function of (seed, epoch) and the sequences' lengths, without state: step k of a run is window
k mod W of epoch k div W, so a resumed run needs the step alone. Sequences of about the same length share a
window (padding costs time), the order of windows and their content change every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspine.train.blocks import keyed_random

POOL = 16  # windows whose sequences are sorted by length together


def windows_per_epoch(samples: int, window: int) -> int:
    """W: every sequence once an epoch, the last window may be smaller."""
    return -(-samples // window)


def epoch_windows(lengths: Sequence[int], window: int, *, seed: int, epoch: int) -> list[list[int]]:
    """The windows of one epoch as lists of sequence indices; every index exactly once."""
    random = keyed_random("windows", seed, epoch)
    order = random.permutation(len(lengths))
    cut: list[list[int]] = []
    for first in range(0, len(order), POOL * window):
        pool = order[first : first + POOL * window]
        pool = pool[np.argsort(np.asarray(lengths)[pool], kind="stable")]
        cut += [pool[start : start + window].tolist() for start in range(0, len(pool), window)]
    return [cut[index] for index in random.permutation(len(cut))]
