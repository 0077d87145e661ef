"""What we attach to in vLLM, by name and parameters, and the versions that we are tested with.

One rule: whatever is called, overridden or hooked has its line here.
"""

from __future__ import annotations

from dspine.serve.adapter.contract import Contract, Signatures

TESTED = ("0.32.0",)

_MODEL = "vllm.model_executor.models.qwen3_dflash"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"

SERVING: Signatures = {
    f"{_MODEL}:DFlashQwen3ForCausalLM.__init__": "self vllm_config prefix",
    f"{_MODEL}:DFlashQwen3ForCausalLM.forward": "self input_ids positions inputs_embeds",
    f"{_MODEL}:DFlashQwen3ForCausalLM.compute_logits": "self hidden_states",
    f"{_MODEL}:DFlashQwen3ForCausalLM.load_weights": "self weights",
    f"{_MODEL}:DFlashQwen3Model.embed_input_ids": "self input_ids",
    f"{_MODEL}:DFlashQwen3Model._normalize_context_k": "self all_k",
    f"{_MODEL}:DFlashQwen3DecoderLayer.forward": "self positions hidden_states residual",
    f"{_MODEL}:dflash_has_any_non_causal": "config",
    f"{_PROPOSER}._maybe_share_lm_head": "self target_language_model",
    f"{_PROPOSER}._greedy_sample": "self hidden_states",
    "vllm.tokenizers.registry:cached_tokenizer_from_config": "model_config kwargs",
    "vllm.triton_utils.dispatcher:register_kernels": "overrides",
    "vllm.v1.sample.rejection_sampler:apply_sampling_constraints": "logits cu_num_draft_tokens sampling_metadata",
    "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens": "x cu_num_tokens num_tokens replace_from replace_to",
}

check = Contract("vLLM", "vllm", TESTED).check
