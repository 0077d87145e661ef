"""Recorders for machines without a GPU: a tape of tensor operations, and one that records nothing.

A tape knows what a CUDA graph knows: operations on tensors at fixed addresses. A number that the host read while it
was made is a constant on it, and an operation that waits for a tensor's value is refused.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from dspine.drafter import tables
from dspine.kernels import law, truncation
from dspine.kernels.recording import CaptureError, Recording

# Sizes or values of these come to the host.
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal"}


class Tape(TorchDispatchMode):
    """Writes down what runs inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = []
        self.made = {}  # by id: a tensor that was made here, and its number

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in WAITS:
            raise CaptureError(f"{func} waits for the device")
        given = tree_map(self._number, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.steps.append((func, given, tree_map(self._numbered, out)))
        return out

    def again(self) -> dict[int, Tensor]:
        """Run everything again, with inputs from outside as they are now; returns what was made, by number."""
        made: dict[int, Tensor] = {}
        for func, given, out in self.steps:
            args, kwargs = tree_map(lambda x: made[x.number] if isinstance(x, Made) else x, given)
            found = func(*args, **kwargs)
            several = isinstance(found, tuple | list)
            for number, tensor in zip(out if several else [out], found if several else [found], strict=True):
                if isinstance(number, Made):
                    made[number.number] = tensor
        return made

    def _number(self, x):
        return self.made[id(x)][1] if isinstance(x, Tensor) and id(x) in self.made else x

    def _numbered(self, x):
        if isinstance(x, Tensor) and id(x) not in self.made:
            self.made[id(x)] = (x, Made(len(self.made)))
        return self._number(x)


class Made:
    """Stands for a tensor that the tape makes."""

    def __init__(self, number: int) -> None:
        self.number = number


class Taped:
    """Records on tapes; replays write the results to where the first ones lay."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, run) -> Recording:
        run()  # as on a GPU, where runs before the recording make what is made once
        tape = Tape()
        with tape:
            made = run()
        results = [result.clone() for result in made]
        numbers = [tape._number(result) for result in made]
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            now = tape.again()
            for held, number in zip(results, numbers, strict=True):
                held.copy_(now[number.number])

        return Recording(replay, results)


class Broken:
    """Records nothing."""

    def record(self, run) -> Recording:
        raise CaptureError("no graphs here")


class Wrong(Taped):
    """Records something else."""

    def record(self, run) -> Recording:
        recording = super().record(run)

        def replay() -> None:
            recording.replay()
            for result in recording.results:
                result.add_(1)

        return Recording(replay, recording.results)


def as_on_a_device(monkeypatch) -> None:
    """On a CPU the likeliest token is found by numpy, which no tape holds; elsewhere by torch."""
    for module in (law, tables):
        monkeypatch.setattr(module, "likeliest", lambda scores: scores.argmax(dim=-1))
    # Nor are heads of the order of a vocabulary tried on a device, which a host would have to choose by their values.
    monkeypatch.setattr(truncation, "HEADS", ())
