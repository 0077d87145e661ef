"""The kernels of `sgl_kernel` that a speculative round on a CPU calls, written from what they compute."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def assign_req_to_token_pool_cpu(
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, *rest: object
) -> None:
    """Enter slots (sum of ends - starts), request after request, into the rows of a table (requests, positions)."""
    first = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=False):
        table[request, start:end] = slots[first : first + end - start].to(table.dtype)
        first += end - start


def assign_extend_cache_locs_cpu(
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, *rest: object
) -> None:
    """Read slots out of such a table."""
    first = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=False):
        slots[first : first + end - start] = table[request, start:end].to(slots.dtype)
        first += end - start


def copy_all_layer_kv_cache_cpu(*args: object) -> None:
    """Moves accepted branches of a tree; a chain has none."""


def causal_conv1d_update_cpu(
    x: Tensor,
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    *,
    conv_state_indices: Tensor,
    intermediate_conv_window: Tensor,
    intermediate_state_indices: Tensor,
    **chain: None,
) -> Tensor:
    """Convolve a block of every request behind its state, as a verification does.

    Args:
        x: (B, channels, T). states: (slots, channels, kernel - 1), the last inputs of each slot; left as they are.
        weight: (channels, kernel). conv_state_indices: (B,) slots.
        intermediate_conv_window: (rows, T, channels, kernel - 1), filled with the state after every step.
        intermediate_state_indices: (B,) its rows. chain: the parents of a tree, of which there is none.

    Returns:
        (B, channels, T), each position's channels side by side in memory.
    """
    assert bias is None
    assert activation == "silu"
    assert not any(parent is not None for parent in chain.values())
    kernel = weight.shape[1]
    seen = torch.cat((states[conv_state_indices.long()].to(x.dtype), x), dim=2)
    windows = seen.unfold(2, kernel - 1, 1)[:, :, 1:]  # (B, channels, T, kernel - 1)
    intermediate_conv_window[intermediate_state_indices.long()] = windows.transpose(1, 2).to(states.dtype)
    mixed = silu((seen.unfold(2, kernel, 1).float() * weight.float()[:, None]).sum(-1)).to(x.dtype)
    return mixed.transpose(1, 2).contiguous().transpose(1, 2)
