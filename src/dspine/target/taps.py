"""Reading decoder layers while the model runs.

One rule: layer id k is the *output* of decoder layer k, counted from 0; the last layer is never a feature.
Hooks stay on the layers once they were tapped, but record only inside `recording()` of the same thread, so
nothing is copied that nobody asked for and nothing stale survives an error.
Source: DSpine (arXiv 2609.36173), target features; the ids are those of `target_layer_ids` in a checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dspine.errors import TargetError


def check_taps(taps: Sequence[int], layers: int) -> None:
    """Refuse layer ids that are negative, repeated, or not below the last layer.

    Raises:
        TargetError: naming the ids and the permitted range.
    """
    bad = [tap for tap in taps if not 0 <= tap <= layers - 2]
    if bad:
        raise TargetError(
            f"target_layer_ids {list(taps)}: {', '.join(map(str, bad))} outside 0..{layers - 2} "
            f"(the target has {layers} layers; the last one is never a feature, as its output is final-normed)",
            "Count layers from 0: id k is the output of decoder layer k.",
        )
    if len(set(taps)) != len(taps):
        raise TargetError(f"target_layer_ids {list(taps)} names a layer twice", "Name each layer once.")


class Taps:
    """Forward hooks on decoder layers, placed when a layer is first asked for."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self._layers = layers
        self._hooked: set[int] = set()
        self._lock = threading.Lock()
        self._current = threading.local()

    @contextmanager
    def recording(self, taps: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Record the outputs of layers `taps` (B, T, d) of every forward that this thread runs inside."""
        check_taps(taps, len(self._layers))
        self._place(taps)
        outputs: dict[int, Tensor] = {}
        outer = getattr(self._current, "wanted", None)
        self._current.wanted = (frozenset(taps), outputs)
        try:
            yield outputs
        finally:
            self._current.wanted = outer

    def _place(self, taps: Sequence[int]) -> None:
        with self._lock:
            for tap in taps:
                if tap not in self._hooked:
                    self._layers[tap].register_forward_hook(partial(self._record, tap))
                    self._hooked.add(tap)

    def _record(self, tap: int, module: nn.Module, inputs: Any, output: Tensor | tuple[Tensor, ...]) -> None:
        wanted = getattr(self._current, "wanted", None)
        if wanted is not None and tap in wanted[0]:
            wanted[1][tap] = output if isinstance(output, Tensor) else output[0]


def concatenate(outputs: dict[int, Tensor], taps: Sequence[int]) -> Tensor:
    """Features (B, T, len(taps)·d), in the order of the list."""
    return torch.cat([outputs[tap] for tap in taps], dim=-1)
