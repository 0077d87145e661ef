"""What we attach to in SGLang, by name and parameters, for each version that we are tested with.

One rule: nothing is attached to a version that was not tested, nor to a function that takes other parameters than it
did when we were; both are refused by name, before anything is patched or loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module

from dspine.errors import ServeError

TESTED = ("0.5.22", "0.5.23")

Signatures = Mapping[str, str]  # "module:qualified.name" → its parameters, in order

_SRT = "sglang.srt"
_WORKER = f"{_SRT}.speculative.dflash_worker_v2:DFlashWorkerV2"
_MODEL = f"{_SRT}.models.dflash:DFlashDraftModel"

# Looked at in every process of SGLang, when it loads its plugins.
REGISTRATION: Signatures = {
    f"{_SRT}.speculative.spec_info:SpeculativeAlgorithm.register": (
        "name supports_overlap validate_server_args spec_class"
    ),
    f"{_SRT}.speculative.spec_info:SpeculativeAlgorithm.create_future_map": (
        "self device req_to_token_pool needs_cpu_seq_lens needs_confidence_relay"
    ),
    f"{_SRT}.speculative.spec_registry:CustomSpecAlgo.handle_server_args": "self server_args",
    f"{_SRT}.arg_groups.resolution_hooks:register_resolution_hook": "name",
    f"{_SRT}.arg_groups.model_override_base:resolving_view": "server_args",
    f"{_SRT}.plugins.hook_registry:HookRegistry.register": "target hook hook_type source",
    f"{_SRT}.speculative.dflash_utils:validate_dflash_request": "req enable_overlap",
}

# Looked at in the scheduler, before the worker is made.
SERVING: Signatures = {
    f"{_WORKER}.__init__": "self server_args gpu_id nccl_port target_worker",
    f"{_WORKER}._selector_sampling_accept": (
        "self candidates next_token_logits candidate_ids q_rows sampling_info draft_input"
    ),
    f"{_WORKER}._propose_selector_block": "self draft_logits_output bs lm_head anchor_token_ids sampling_info",
    f"{_WORKER}._update_target_mamba_state_after_verify": (
        "self batch seq_lens_pre_verify seq_lens_post_verify commit_lens"
    ),
    f"{_MODEL}.__init__": "self config quant_config prefix",
    f"{_MODEL}.forward": "self input_ids positions forward_batch input_embeds get_embedding pp_proxy_tensors",
    f"{_MODEL}.load_weights": "self weights",
    f"{_MODEL}.set_block_size": "self block_size",
    f"{_SRT}.models.dflash:DFlashDecoderLayer.forward": "self positions hidden_states forward_batch residual",
    f"{_SRT}.models.dflash:candidate_topk": "hidden lm_head k with_partition",
    f"{_SRT}.models.dflash:DFlash2DraftModel.compute_candidates": "self hidden",
    f"{_SRT}.models.dflash:CandidateSelector.build_lattice": (
        "self candidate_ids unary_logits hidden_states anchor_token_ids"
    ),
    f"{_SRT}.models.dflash:CandidateSelector.sample_path": (
        "self candidate_ids scores uniforms temperatures greedy_mask"
    ),
    f"{_SRT}.models.registry:_ModelRegistry.register": "self package_name overwrite strict",
    f"{_SRT}.speculative.spec_utils:commit_mamba_states_after_verify": (
        "target_worker batch accept_lens accept_index draft_token_num prepared_step_indices"
    ),
    f"{_SRT}.runtime_context:get_spec": "",
    f"{_SRT}.runtime_context:mamba_track_grid": "tree_page",
}


def check(version: str, signatures: Signatures) -> None:
    """Refuse an SGLang that we were not tested with.

    Args:
        version: of the SGLang at hand.
        signatures: what has to be there.

    Raises:
        ServeError: another version, or something that is missing or takes other parameters.
    """
    if version not in TESTED:
        raise ServeError(
            f"dspine is tested with SGLang {' and '.join(TESTED)}, and this is SGLang {version}",
            f"Install one of them beside dspine: pip install 'sglang=={TESTED[0]}'",
        )
    differing = [text for name, wanted in signatures.items() if (text := _difference(name, wanted)) is not None]
    if differing:
        raise ServeError(
            f"this SGLang {version} is not the one that dspine was tested with:\n  " + "\n  ".join(differing),
            f"It seems to be patched. Install the release: pip install --force-reinstall 'sglang=={version}'",
        )


def _difference(name: str, wanted: str) -> str | None:
    module, _, path = name.partition(":")
    try:
        found: object = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        parameters = list(inspect.signature(found).parameters)  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return f"{name}: {error}"
    return None if parameters == wanted.split() else f"{name} takes ({', '.join(parameters)}), not ({wanted})"
