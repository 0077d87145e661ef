"""DSPINE as SGLang's scheduler sees it: what kind of algorithm it is, and who reads its arguments.

One rule: it answers as DFlash does wherever the two behave alike, and says no to everything else.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from dspine.errors import ServeError
from dspine.serve.sglang.arguments import resolve


class DSpineAlgorithm(CustomSpecAlgo):
    """Answers to SGLang's questions about the algorithm; whatever is not named here is no."""

    def is_dflash_family(self) -> bool:
        return True  # features are captured, the draft's pool is budgeted, verification is a linear chain

    def supports_target_verify_for_draft(self) -> bool:
        return True  # the draft block runs in TARGET_VERIFY mode

    def supports_prefill_shared_read_done(self) -> bool:
        return True

    def supports_mixed_chunk(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    # Asked of every algorithm, and missing from the class that plugins derive theirs from.
    create_future_map = SpeculativeAlgorithm.create_future_map

    def handle_server_args(self, server_args: Any) -> None:
        resolve(server_args)


class RefusedAlgorithm(CustomSpecAlgo):
    """Stands where DSPINE cannot be served; raises the reason when somebody asks for it."""

    reason: ClassVar[ServeError]

    def handle_server_args(self, server_args: Any) -> None:
        raise self.reason
