"""Every limit under vLLM is an error that names the setting, its value, and what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dspine.errors import ServeError
from dspine.serve.vllm.limits import broken_limits, check_block, check_method

SPECULATIVE = {
    "method": "dflash",
    "model": "drafter",
    "num_speculative_tokens": 7,
    "draft_sample_method": "greedy",
    "rejection_sample_method": "standard",
    "num_speculative_tokens_per_batch_size": None,
    "draft_model_config": SimpleNamespace(quantization=None),
}
PARALLEL = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}


def config(speculative=None, parallel=None, **more):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**SPECULATIVE | (speculative or {})),
        parallel_config=SimpleNamespace(**PARALLEL | (parallel or {})),
        model_config=SimpleNamespace(model="target"),
        **{"use_v2_model_runner": False, **more},
    )


def test_what_is_fine_passes():
    assert broken_limits(config()) == []
    check_method(config())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"speculative": {"draft_sample_method": "probabilistic"}}, '"draft_sample_method": "probabilistic"'),
        ({"speculative": {"rejection_sample_method": "synthetic"}}, '"rejection_sample_method": "synthetic"'),
        (
            {"speculative": {"num_speculative_tokens_per_batch_size": [(1, 8, 7)]}},
            '"num_speculative_tokens_per_batch_size": [(1, 8, 7)]',
        ),
        (
            {"speculative": {"draft_model_config": SimpleNamespace(quantization="fp8")}},
            '"quantization": "fp8"',
        ),
        ({"parallel": {"tensor_parallel_size": 2}}, "--tensor-parallel-size 2"),
        ({"parallel": {"pipeline_parallel_size": 4}}, "--pipeline-parallel-size 4"),
        ({"use_v2_model_runner": True}, "model runner V2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_cannot_be_honoured_is_named(given, words):
    [error] = broken_limits(config(**given))
    assert f"dspine does not serve with {words}: " in error.what
    assert error.fix


def test_another_method_is_sent_to_the_right_one():
    with pytest.raises(ServeError, match='"method": "eagle3": drafter holds a DSpine drafter') as caught:
        check_method(config(speculative={"method": "eagle3"}))
    assert caught.value.fix == (
        '--speculative-config \'{"method": "dflash", "model": "drafter", "num_speculative_tokens": 7}\''
    )


def test_a_drafter_without_a_target_is_told_that_it_is_one():
    alone = config()
    alone.speculative_config = None
    with pytest.raises(ServeError, match="answers nothing by itself"):
        check_method(alone)


def test_shorter_blocks_are_taken_and_longer_ones_refused():
    check_block(1, 7)
    check_block(7, 7)
    with pytest.raises(ServeError, match='"num_speculative_tokens": 8: this drafter was trained to draft 7'):
        check_block(8, 7)
