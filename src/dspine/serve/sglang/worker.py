"""The worker of a DSPINE server: SGLang's DFlash worker, whose draft model is ours.

One rule: a round is SGLang's; what is overridden here is where its own would not give the target's law (min-p), or
would not commit the state that DSPINE's name lets through (gated delta networks under ReplaySSM).
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.arg_groups.resolution_hooks import _HOOKS
from sglang.srt.managers import scheduler
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from torch import Tensor

from dspine.errors import ServeError
from dspine.serve.sglang.arguments import guard_other_algorithms
from dspine.serve.sglang.law import folded
from dspine.serve.sglang.models.dspine import DSpineDraftModel
from dspine.serve.sglang.recurrent import commit, is_replayed
from dspine.serve.sglang.target import served_target

logger = logging.getLogger(__name__)


class DSpineWorker(DFlashWorkerV2):
    """Drafts with DSpine, verifies and commits as DFlash does."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        _check_attached()
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        if not isinstance(self.draft_model, DSpineDraftModel):
            raise ServeError(
                f"the draft model is a {type(self.draft_model).__name__}, not ours",
                "Another plugin took its name: start SGLang with SGLANG_PLUGINS=dspine.",
            )
        for note in self.draft_model.attach(served_target(target_worker)):
            logger.warning(note)

    def _selector_sampling_accept(
        self,
        *,
        candidates: Tensor,
        next_token_logits: Tensor,
        candidate_ids: Tensor,
        q_rows: Tensor,
        sampling_info: Any,
        draft_input: Any,
    ) -> tuple[Tensor, Tensor]:
        """Exact rejection sampling; min-p, which SGLang leaves out here, is folded into the logits before."""
        if sampling_info.need_min_p_sampling:
            next_token_logits, sampling_info = folded(next_token_logits, sampling_info, candidates.shape[1])
        accepted: tuple[Tensor, Tensor] = super()._selector_sampling_accept(
            candidates=candidates,
            next_token_logits=next_token_logits,
            candidate_ids=candidate_ids,
            q_rows=q_rows,
            sampling_info=sampling_info,
            draft_input=draft_input,
        )
        return accepted

    def _update_target_mamba_state_after_verify(
        self, *, batch: Any, seq_lens_pre_verify: Tensor, seq_lens_post_verify: Tensor, commit_lens: Tensor
    ) -> None:
        """Commit the recurrent state of the last accepted step, from the ring where it is replayed."""
        if is_replayed(self.target_worker.model_runner.req_to_token_pool):
            commit(self.target_worker, batch, seq_lens_pre_verify, seq_lens_post_verify, int(self.block_size))
            return
        super()._update_target_mamba_state_after_verify(
            batch=batch,
            seq_lens_pre_verify=seq_lens_pre_verify,
            seq_lens_post_verify=seq_lens_post_verify,
            commit_lens=commit_lens,
        )


def _check_attached() -> None:
    """SGLang logs a hook that did not take and goes on: look whether ours did.

    Raises:
        ServeError: naming the one that is missing.
    """
    missing = []
    if not hasattr(scheduler.validate_dflash_request, "__wrapped__"):
        missing.append("the check of requests")
    if guard_other_algorithms not in _HOOKS.get("handle_speculative_decoding", ()):
        missing.append("the check of arguments")
    if missing:
        raise ServeError(
            f"SGLang did not attach {' and '.join(missing)} of dspine's plugin",
            "Look for 'Failed to apply hooks' in the log above; another plugin may have replaced it.",
        )
