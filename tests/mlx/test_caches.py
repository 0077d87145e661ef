"""Rolling back: full and rotating caches give what a recomputation gives; others are refused by name."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import pytest
from mlx_lm.models import llama, mamba2
from mlx_lm.models.cache import KVCache, RotatingKVCache
from tests.support.tiny_target import tiny_tokenizer

from dspine.decode.sampling import SamplingParams
from dspine.errors import TargetError
from dspine.serve.mlx.caches import check_caches, take_back
from dspine.serve.mlx.engine import MlxEngine
from dspine.serve.mlx.proposal import Proposal
from dspine.serve.mlx.target import MlxTarget

WINDOW = 8


@pytest.fixture(scope="module")
def sliding():
    """A random model with layers that see a window, beside one that sees all."""
    sizes = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": 262,
        "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": WINDOW,
    }
    mx.random.seed(3)
    model = llama.Model(llama.ModelArgs(**sizes))
    model.update({"lm_head": {"weight": mx.random.normal((262, 64), scale=0.5)}})
    config = SimpleNamespace(hidden_size=64, max_position_embeddings=4096)
    config.get_text_config = lambda decoder: config
    return MlxTarget(model, tiny_tokenizer(), SimpleNamespace(config=config, generation_config=None), name="sliding")


class Scripted:
    """Proposes the plain answer, wrong from a place that changes every round."""

    target_layer_ids, max_positions, confident = (0,), 1 << 20, False

    def __init__(self, answer, candidates):
        self.answer, self.candidates, self.rounds = answer, candidates, 0

    def new_context(self):
        return SimpleNamespace(length=0, arrays=[])

    def observe(self, context, features):
        context.length += features.shape[1]

    def propose(self, context, anchor, law, uniforms):
        right = (self.rounds * 3) % (self.candidates + 1)
        self.rounds += 1
        at = context.length + 1
        tokens = [*self.answer[at : at + self.candidates], *[0] * self.candidates][: self.candidates]
        return Proposal(mx.array([t if i < right else (t + 1) % 262 for i, t in enumerate(tokens)], dtype=mx.int32))


@pytest.mark.parametrize("candidates", [1, 3, 7, 12])
def test_a_rotating_cache_gives_the_plain_answer(sliding, candidates):
    prompt = list(range(65, 65 + 2 * WINDOW + 3))
    params = SamplingParams(max_new_tokens=60, ignore_eos=True)
    [plain] = MlxEngine(sliding, prefill_chunk=5).generate([prompt], params)
    drafter = Scripted([*prompt, *plain.token_ids], candidates)
    [drafted] = MlxEngine(sliding, drafter, prefill_chunk=5).generate([prompt], params)
    assert drafted.token_ids == plain.token_ids
    assert len(set(plain.token_ids)) > 10
    accepted = {r.accepted for r in drafted.rounds}
    assert {0, candidates} <= accepted


def test_the_model_keeps_both_kinds_of_caches(sliding):
    assert [type(cache) for cache in sliding.new_caches()] == [RotatingKVCache, KVCache, RotatingKVCache]


@pytest.mark.parametrize("before", [3, 7, 8, 20])
@pytest.mark.parametrize("kept", [1, 2, 5])
def test_rolled_back_equals_recomputed(sliding, before, kept):
    tokens = mx.array([(7 * i) % 250 for i in range(40)])
    caches = sliding.new_caches()
    for at in range(before):  # one at a time: the ring turns
        mx.eval(sliding.forward(tokens[at : at + 1], caches)[0])
    wrong = mx.concatenate([tokens[before : before + kept], mx.array([9, 8, 7, 6])])
    mx.eval(sliding.forward(wrong, caches)[0])
    take_back(caches, kept + 4, kept)
    rest = tokens[before + kept : before + kept + 6]
    got, _ = sliding.forward(rest[:1], caches)
    more, _ = sliding.forward(rest[1:], caches)
    wanted, _ = sliding.forward(tokens[: before + kept + 6], sliding.new_caches())
    assert mx.allclose(mx.concatenate([got, more]), wanted[-6:], atol=1e-4).item()
    assert all(cache.offset == before + kept + 6 for cache in caches)


def test_caches_that_cannot_be_rolled_back_are_refused_by_name():
    sizes = mamba2.ModelArgs(
        model_type="mamba2",
        num_heads=2,
        head_dim=16,
        vocab_size=262,
        hidden_size=16,
        intermediate_size=32,
        state_size=8,
        num_hidden_layers=2,
        layer_norm_epsilon=1e-5,
        conv_kernel=4,
        n_groups=1,
        use_bias=False,
        use_conv_bias=True,
        tie_word_embeddings=True,
        time_step_limit=(0.0, 1.0),
        time_step_rank="auto",
    )
    with pytest.raises(TargetError, match=r"ArraysCache \(cache 0, 1\)"):
        check_caches(mamba2.Model(sizes).make_cache(), "mamba")
    check_caches([KVCache(), RotatingKVCache(8)], "attention")
