"""What SGLang calls in each of its processes: the entry point of the group `sglang.srt.plugins`.

One rule: SGLang logs a plugin's error and goes on, so that only "Unknown speculative algorithm name: DSPINE" would be
left of it. Therefore whatever keeps us from serving is registered under our name, and raised where DSPINE is asked for.
"""

from __future__ import annotations

import sglang
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from dspine.errors import ServeError
from dspine.serve.sglang import contract
from dspine.serve.sglang.limits import NAME


def register() -> None:
    """Make DSPINE known to this process of SGLang."""
    try:
        contract.check(sglang.__version__, contract.REGISTRATION)
    except ServeError as error:
        _register_refusal(error)
        return
    _register()


def _register() -> None:
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from dspine.serve.sglang.algorithm import DSpineAlgorithm
    from dspine.serve.sglang.arguments import guard_other_algorithms
    from dspine.serve.sglang.requests import VALIDATOR, validate

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DSpineAlgorithm)(_worker)
    register_resolution_hook("handle_speculative_decoding")(guard_other_algorithms)
    HookRegistry.register(VALIDATOR, validate, HookType.AROUND)


def _worker(server_args: object) -> type:
    """The worker class; called in the scheduler's process alone, which has imported all that it needs by then."""
    contract.check(sglang.__version__, contract.SERVING)

    from sglang.srt.models.registry import ModelRegistry

    from dspine.serve.sglang.worker import DSpineWorker

    if "DSpineDraftModel" not in ModelRegistry.models:
        ModelRegistry.register("dspine.serve.sglang.models", strict=True)
    return DSpineWorker


def _register_refusal(error: ServeError) -> None:
    from dspine.serve.sglang.algorithm import RefusedAlgorithm

    RefusedAlgorithm.reason = error
    SpeculativeAlgorithm.register(NAME, spec_class=RefusedAlgorithm)(_worker)
