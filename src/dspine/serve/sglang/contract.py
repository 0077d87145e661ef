"""What we attach to in SGLang, by name and parameters, and the versions that we are tested with.

One rule: whatever is called, overridden or hooked has its line here.
"""

from __future__ import annotations

from dspine.serve.adapter.contract import Contract, Signatures

TESTED = ("0.5.22", "0.5.23")

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


check = Contract("SGLang", "sglang", TESTED).check
