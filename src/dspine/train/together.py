"""One drafter trained by several processes: replicated or sharded, and its state as one process would have it.

One rule: gradients are sums over all processes, so a process's share of the loss is scaled by their number against the
mean that torch takes. Replicated: `DistributedDataParallel`. Sharded (FSDP2, `fully_shard`): weights, gradients and the
optimiser's moments are shared out; a drafter is one unit, since its layers also project the context outside their
forward. Whatever is saved is whole, and loads in any number of processes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dspine.drafter.registry import Network
from dspine.train.processes import Processes


class _Forward(nn.Module):
    """A drafter whose forward is what is computed of it: torch's wrappers watch the forward of a module alone."""

    def __init__(self, drafter: Network, compute: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.drafter = drafter
        self.compute = compute

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        return self.compute(*inputs)


class Together:
    """The drafter of a run, as all its processes train it.

    Args:
        drafter: alike in every process; sharded in place where `sharded`.
        compute: what is differentiated: anything → tensors.
    """

    def __init__(
        self, drafter: Network, compute: Callable[..., tuple[Tensor, ...]], processes: Processes, *, sharded: bool
    ) -> None:
        self.drafter = drafter
        self.processes = processes
        self.sharded = sharded and processes.count > 1
        self._twin = _twin(drafter) if self.sharded and processes.first else None
        self._module: nn.Module = _Forward(drafter, compute)
        if self.sharded:
            fully_shard(self._module)
        elif processes.count > 1:
            # Some kinds leave weights out of some steps' graphs (a head whose share of the loss is 0 still counts).
            with warnings.catch_warnings():  # the name that torch 2.11 knows is an old one in 2.13
                warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
                self._module = DistributedDataParallel(
                    self._module, broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
                )

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """`compute` of the inputs; every process must call it equally often."""
        out: tuple[Tensor, ...] = self._module(*inputs)
        return out

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Around forward and backward of a micro-batch: gradients are exchanged with the `last` alone."""
        if isinstance(self._module, DistributedDataParallel) and not last:
            with self._module.no_sync():
                yield
            return
        if isinstance(self._module, FSDPModule):
            self._module.set_requires_gradient_sync(last)
        yield

    def backward(self, share: Tensor) -> None:
        """Add the gradient of this process's share of the loss; over all processes the shares add up to the loss."""
        (share * self.processes.count).backward()  # type: ignore[no-untyped-call]  # torch takes the mean

    def norm_and_clip(self, clip: float) -> float:
        """Norm of the whole gradient, which is then scaled to at most `clip`."""
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), clip)
        return float(_whole(norm))

    def settle(self) -> None:
        """Give back what a forward without backward left on the device."""
        if isinstance(self._module, FSDPModule):
            self._module.reshard()

    def whole(self) -> Network | None:
        """The drafter with all its weights, in the first process; None in the others, which take part."""
        if not self.sharded:
            return self.drafter
        weights = self.weights()
        if self._twin is not None:
            self._twin.load_state_dict(weights)
        return self._twin

    def weights(self) -> dict[str, Tensor]:
        """The drafter's state, whole; every process takes part."""
        return {name: _whole(value) for name, value in self.drafter.state_dict().items()}

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimiser's state, whole; every process takes part."""
        state = optimizer.state_dict()
        state["state"] = {
            key: {name: _whole(value) if isinstance(value, Tensor) else value for name, value in of.items()}
            for key, of in state["state"].items()
        }
        return state

    def load(self, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, moments: Mapping[str, Any]) -> None:
        """Take over states as `weights` and `moments` give them."""
        present = self.drafter.state_dict()
        self.drafter.load_state_dict({name: _as(present[name], value) for name, value in weights.items()})
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = {
            key: {name: _as(parameters[key], value) if value.dim() else value for name, value in of.items()}
            for key, of in moments["state"].items()
        }
        optimizer.load_state_dict({**moments, "state": state})


def _twin(drafter: Network) -> Network:
    """A drafter of the same sizes over the very same tables of the target."""
    return copy.deepcopy(drafter, {id(drafter.tables): drafter.tables})


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _as(present: Tensor, value: Tensor) -> Tensor:
    """`value` laid out as `present` is."""
    if not isinstance(present, DTensor):
        return value
    return distribute_tensor(value.to(present.device), present.device_mesh, present.placements)
