"""Numbers of the host on their way to a device.

One rule: the host does not wait. A plain copy to a GPU from ordinary memory waits until all that the GPU was given
before is done, which would end the host's lead over it several times a round; from pinned memory it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Tensor | Sequence[int], device: torch.device | str | None) -> Tensor:
    """A tensor of the host, or integers as int64, on a device."""
    held = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.int64, device="cpu")
    if device is None or torch.device(device).type == "cpu":
        return held
    if torch.device(device).type != "cuda":
        return held.to(device)
    return held.pin_memory().to(device, non_blocking=True)
