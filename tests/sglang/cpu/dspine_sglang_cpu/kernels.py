"""The three kernels of `sgl_kernel` that a speculative round on a CPU calls."""

from __future__ import annotations

from torch import Tensor


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
