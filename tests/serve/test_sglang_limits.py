"""Every limit of a DSPINE server is an error that names the flag, its value, and what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dspine.serve.sglang.limits import broken_limits, refused_outputs, refused_parameters, ring_limit

FINE = {
    "device": "cuda",
    "tp_size": 1,
    "pp_size": 1,
    "enable_dp_attention": False,
    "speculative_draft_model_path": "drafter",
    "speculative_draft_window_size": None,
    "speculative_dflash_block_size": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "speculative_draft_model_quantization": None,
    "_speculative_draft_quantization_explicitly_set": False,
    "disaggregation_mode": "null",
    "kv_cache_dtype": "auto",
    "tokenizer_worker_num": 1,
    "enable_deterministic_inference": False,
    "enable_linear_replayssm_spec": False,
    "enable_unified_memory": False,
    "disable_radix_cache": False,
    "mamba_radix_cache_strategy": "auto",
    "mamba_ssm_dtype": None,
    "linear_attn_backend": "triton",
    "linear_attn_prefill_backend": None,
    "linear_attn_decode_backend": None,
    "enable_linear_replayssm": False,
}
REPLAYED = {
    "enable_linear_replayssm_spec": True,
    "mamba_radix_cache_strategy": "extra_buffer",
    "mamba_ssm_dtype": "float32",
}


def refusals(**changed) -> list[str]:
    return [str(error) for error in broken_limits(SimpleNamespace(**{**FINE, **changed}))]


@pytest.mark.parametrize(
    "fine",
    [
        {},
        {"device": "cuda:1"},
        {"speculative_num_steps": 1, "speculative_eagle_topk": 1},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"speculative_draft_model_quantization": "fp8"},  # taken over from the target, which says nothing of a drafter
        REPLAYED,
    ],
)
def test_what_can_be_served_is_not_refused(fine):
    assert refusals(**fine) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"device": "cpu"}, "--device cpu"),
        ({"device": "xpu"}, "--device xpu"),
        ({"tp_size": 2}, "--tp-size 2"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"speculative_draft_model_path": None}, "--speculative-draft-model-path missing"),
        ({"speculative_draft_window_size": 512}, "--speculative-draft-window-size 512"),
        ({"speculative_dflash_block_size": 16}, "--speculative-dflash-block-size 16"),
        ({"speculative_num_steps": 3}, "--speculative-num-steps 3"),
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk 4"),
        ({"speculative_accept_threshold_single": 0.9}, "--speculative-accept-threshold-single 0.9"),
        ({"speculative_accept_threshold_acc": 0.9}, "--speculative-accept-threshold-acc 0.9"),
        (
            {"speculative_draft_model_quantization": "fp8", "_speculative_draft_quantization_explicitly_set": True},
            "--speculative-draft-model-quantization fp8",
        ),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode prefill"),
        ({"kv_cache_dtype": "nvfp4"}, "--kv-cache-dtype nvfp4"),
        ({"kv_cache_dtype": "fp4_mx_block16"}, "--kv-cache-dtype fp4_mx_block16"),
        ({"kv_cache_dtype": "mxfp8"}, "--kv-cache-dtype mxfp8"),
        ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num 2"),
        ({"enable_deterministic_inference": True}, "--enable-deterministic-inference"),
        ({**REPLAYED, "enable_unified_memory": True}, "--enable-unified-memory"),
        ({**REPLAYED, "disable_radix_cache": True}, "--disable-radix-cache"),
        ({**REPLAYED, "mamba_radix_cache_strategy": "no_buffer"}, "--mamba-radix-cache-strategy no_buffer"),
        ({**REPLAYED, "mamba_ssm_dtype": "bfloat16"}, "--mamba-ssm-dtype bfloat16"),
        ({**REPLAYED, "linear_attn_prefill_backend": "cutedsl"}, "--linear-attn-prefill-backend cutedsl"),
        ({**REPLAYED, "linear_attn_decode_backend": "flashinfer"}, "--linear-attn-decode-backend flashinfer"),
        ({**REPLAYED, "enable_linear_replayssm": True}, "--enable-linear-replayssm"),
    ],
)
def test_each_limit_is_refused_by_name_with_a_remedy(wrong, words):
    [refusal] = refusals(**wrong)
    assert f"{words}:" in refusal
    assert "\n" in refusal  # what to do


def ring(length: int, block: int, replayed: bool = True):
    return ring_limit(
        SimpleNamespace(
            enable_linear_replayssm_spec=replayed, linear_replayssm_cache_len=length, speculative_num_draft_tokens=block
        )
    )


@pytest.mark.parametrize(("length", "block", "enough"), [(8, 8, 16), (16, 17, 32), (24, 8, 16), (32, 64, 64)])
def test_a_ring_that_cannot_hold_a_block_is_refused(length, block, enough):
    refusal = str(ring(length, block))
    assert f"--linear-replayssm-cache-len {length}:" in refusal
    assert f"--linear-replayssm-cache-len {enough};" in refusal
    assert ring(length, block, replayed=False) is None


@pytest.mark.parametrize(("length", "block"), [(16, 16), (16, 2), (32, 16), (64, 33)])
def test_a_ring_that_holds_a_block_is_none(length, block):
    assert ring(length, block) is None


def test_all_broken_limits_are_found():
    assert len(refusals(tp_size=2, pp_size=2)) == 2


NEUTRAL = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "min_new_tokens": 0}


def test_parameters_that_do_nothing_are_no_reason_to_refuse():
    assert refused_parameters(SimpleNamespace(**NEUTRAL)) is None


@pytest.mark.parametrize(
    "wrong",
    [{"repetition_penalty": 1.1}, {"frequency_penalty": -0.5}, {"presence_penalty": 0.5}, {"min_new_tokens": 4}],
)
def test_a_parameter_that_a_block_would_ignore_refuses_the_request(wrong):
    [(name, value)] = wrong.items()
    assert f"{name}={value}:" in refused_parameters(SimpleNamespace(**{**NEUTRAL, **wrong}))


@pytest.mark.parametrize("wanted", [True, "last"])
def test_hidden_states_which_a_round_keeps_to_itself_are_refused(wanted):
    assert "return_hidden_states:" in refused_outputs(SimpleNamespace(return_hidden_states=wanted))
    assert refused_outputs(SimpleNamespace(return_hidden_states=False)) is None
