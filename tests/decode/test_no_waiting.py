"""What is recorded asks a device for no number and mixes nothing of the host in: it runs over tensors without values.

Tensors on the meta device have shapes alone, and go the ways of a device that is no CPU. Reading a value of one
(`item`, `tolist`, `nonzero`, a mask of bools), or letting it meet a tensor of the host, is an error here.
"""

from __future__ import annotations

import pytest
import torch
from tests.support.parallel import over
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dspine.drafter.transfer import TransferSpace
from dspine.kernels.kv import DeviceSpan
from dspine.kernels.law import Law

META = torch.device("meta")
B, T, LIMIT = 3, 4, 64


class OneDevice(TorchDispatchMode):
    """Refuses operations that make or take a tensor of another device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, out)):
            assert not isinstance(tensor, torch.Tensor) or tensor.is_meta, f"{func} on {tensor.device}"
        return out


def moved(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)


def send(network: nn.Module) -> None:
    """Parameters and buffers without values, on the device."""
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(moved(parameter), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved(buffer)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2", "mistral"])
def test_verification(kind):
    target = tiny_target(kind, window=6 if kind in ("qwen3", "mistral") else None, dtype=torch.bfloat16)
    with OneDevice():
        send(target.model)
        target.device = META
        cache = target.new_cache(B)
        starts, ids = (torch.empty(shape, dtype=torch.int64, device=META) for shape in (B, (B, T)))
        out = target.forward_at(ids, cache, DeviceSpan(0, starts, T, LIMIT), (0, 2))
        scores = target.logits(out.hidden)
    assert scores.shape == (B, T, 320)
    assert out.features.shape == (B, T, 128)
    assert scores.is_meta


@torch.no_grad()
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("kind", ["dspine", "dflash", "domino", "dspark", "tabulated", "dflash2", "eagle3"])
def test_drafts(kind, greedy):
    target = tiny_target(dtype=torch.bfloat16)
    if kind == "dspine":
        drafter = tiny_drafter(target, confidence=True).to(torch.bfloat16)
        drafter.space = on_device(drafter.space)
    else:
        sizes = {"tabulated": 4} if kind == "tabulated" else {}
        drafter = over(target, "dspark" if kind == "tabulated" else kind, confidence=True, block_size=T, **sizes)
    with OneDevice():
        send(drafter)
        send(target.model)
        tables = drafter.tables
        tables.head = tables._draft_head = moved(tables.head)
        cache = drafter.new_cache(B)
        starts, tokens = (torch.empty(shape, dtype=torch.int64, device=META) for shape in (B, (B, T)))
        features = torch.empty(B, T, 128, dtype=torch.bfloat16, device=META)
        drafter.take_in(cache, DeviceSpan(0, starts, T, LIMIT), features, tokens)
        span = DeviceSpan(0, starts, drafter.draft_width, LIMIT)
        each = torch.empty(B, device=META)
        law = Law(each, starts, each, each, greedy, drawn=False, cut=None)
        noise = None if greedy else torch.empty(B, drafter.candidates, device=META)
        proposal = drafter.propose_at(cache, span, starts, law, noise)
    assert proposal.tokens.shape == (B, drafter.candidates)
    assert (proposal.probs is None) == greedy
    assert proposal.confidence.shape == (B, drafter.candidates)


def on_device(space):
    return TransferSpace(*(moved(each) for each in (space.mean, space.basis, space.codes)))
