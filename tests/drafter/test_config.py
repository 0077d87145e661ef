"""Sizes: the paper's values for Qwen3-8B, sensible ones elsewhere, and refusals that name the field."""

from __future__ import annotations

import pytest

from dspine.drafter.config import DSpineConfig, default_taps
from dspine.errors import ConfigError
from dspine.facts import TargetFacts

QWEN3_8B = TargetFacts(4096, 12288, 36, 32, 8, 128, 151936, 1e-6, 1e6, 40960)
SMOLLM2 = TargetFacts(576, 1536, 30, 9, 3, 64, 49152, 1e-5, 1e5, 8192)


@pytest.mark.parametrize(
    ("layers", "taps", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (24, 5, (1, 6, 11, 16, 21)),
        (28, 5, (1, 7, 13, 19, 25)),
        (32, 5, (1, 8, 15, 22, 29)),
        (40, 5, (1, 10, 19, 28, 37)),
        (48, 5, (1, 12, 23, 34, 45)),
        (64, 5, (1, 16, 31, 46, 61)),
        (24, 3, (1, 11, 21)),
        (28, 3, (1, 13, 25)),
        (32, 3, (1, 15, 29)),
        (36, 3, (1, 17, 33)),
        (40, 3, (1, 19, 37)),
        (48, 3, (1, 23, 45)),
        (64, 3, (1, 31, 61)),
        (24, 8, (1, 4, 7, 10, 12, 15, 18, 21)),
        (32, 8, (1, 5, 9, 13, 17, 21, 25, 29)),
        (40, 8, (1, 6, 11, 16, 22, 27, 32, 37)),
        (48, 8, (1, 7, 14, 20, 26, 32, 39, 45)),
        (64, 8, (1, 10, 18, 27, 35, 44, 52, 61)),
        (36, 8, (1, 6, 10, 15, 19, 24, 28, 33)),
        (28, 8, (1, 4, 8, 11, 15, 18, 22, 25)),
        (30, 1, (15,)),
    ],
)
def test_default_taps(layers, taps, expected):
    assert default_taps(layers, taps) == expected


def test_the_papers_values_are_proposed_for_qwen3_8b():
    assert DSpineConfig.for_target(QWEN3_8B, mask_token_id=151669) == DSpineConfig()


def test_another_target_gets_its_own_width_and_smaller_ranks():
    config = DSpineConfig.for_target(SMOLLM2, mask_token_id=16, num_hidden_layers=3)
    assert (config.hidden_size, config.transfer_rank, config.message_size) == (576, 144, 64)
    assert config.target_layer_ids == (1, 14, 27)
    assert config.rope_theta == 1e5
    assert config.candidates == 15


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"block_size": 1}, "block_size is 1"),
        ({"target_layer_ids": (1, 35)}, "0 to 34"),
        ({"target_layer_ids": (-1, 3)}, "0 to 34"),
        ({"target_layer_ids": (3, 3)}, "distinct"),
        ({"target_layer_ids": ()}, "target_layer_ids"),
        ({"num_key_value_heads": 5}, "multiple"),
        ({"transfer_rank": 5000}, "transfer_rank 5000"),
        ({"top_k": 0}, "top_k is 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"head_dim": 33}, "head_dim is 33"),
        ({"mask_token_id": -1}, "mask_token_id is -1"),
        ({"top_k": 200_000}, "top_k 200000"),
        ({"rank": 3}, "unknown rank"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        DSpineConfig.for_target(QWEN3_8B, **{"mask_token_id": 151669, **overrides})


def test_a_target_too_shallow_for_the_taps_is_refused():
    with pytest.raises(ConfigError, match="6 layers has no 5 distinct"):
        default_taps(6, 5)
