"""The commit of recurrent states that are replayed, for gated delta nets under `--enable-linear-replayssm-spec`.

One rule: which steps of a block stay is what SGLang's own DFlash commit would say; what is done with them is left to
the commit that SGLang's other speculative workers call, which knows the ring of compact steps. SGLang's DFlash scatters
stored states instead, of which such a target keeps none, and refuses it by its name alone. Source: ReplaySSM, as SGLang
has it.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.runtime_context import mamba_track_grid
from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify
from torch import Tensor


def is_replayed(request_pool: Any) -> bool:
    """Whether a target's recurrent states are rolled back by replaying its steps, with one decay a head.

    Args:
        request_pool: SGLang's table of requests; only that of a hybrid target has a pool of states. Decays of single
            channels (Kimi's delta attention) have a ring of another kind, which SGLang's DFlash commits itself.
    """
    pool = getattr(request_pool, "mamba_pool", None)
    return pool is not None and pool.enable_linear_replayssm_spec and not pool.replayssm_is_kda


def commit(target_worker: Any, batch: Any, before: Tensor, after: Tensor, block: int) -> None:
    """Bring every request's states to its last accepted step, and keep those of a boundary that it crossed.

    Args:
        target_worker: SGLang's worker of the target.
        batch: SGLang's batch of B requests whose blocks were verified.
        before, after: positions (B,) that each request had committed before its block, and has now.
        block: rows of a block.
    """
    kept = after - before
    rows = torch.arange(len(kept) * block, device=kept.device).view(len(kept), block)  # a chain: step t is row t
    steps = kept.long() - 1, _boundaries(batch, before, after)
    commit_mamba_states_after_verify(target_worker, batch, kept, rows, block, prepared_step_indices=steps)


def _boundaries(batch: Any, before: Tensor, after: Tensor) -> Tensor | None:
    """The step (B,) of a block after which a prefix of the radix cache ends, -1 where none does; None: none is kept."""
    if batch.mamba_track_indices is None:
        return None
    grid = mamba_track_grid(batch.tree_cache.page_size)
    boundary = after // grid * grid
    return torch.where(boundary > before, boundary - before - 1, -1).long()
