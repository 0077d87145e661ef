"""mlx-lm's models behind one forward: logits and taps are the torch target's; what cannot be drafted for is refused."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_lm.models import gemma
from tests.support.tiny_target import tiny_target, tiny_tokenizer

from dspine.errors import TargetError
from dspine.kernels.kv import Span
from dspine.serve.mlx.arrays import to_mlx, to_torch
from dspine.serve.mlx.loading import load_mlx_target, use_device
from dspine.serve.mlx.target import MlxTarget


def described(**fields):
    config = SimpleNamespace(max_position_embeddings=4096, **fields)
    config.get_text_config = lambda decoder: config
    return SimpleNamespace(config=config, generation_config=None)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_taps_are_the_torch_targets(pair, torch_pair, tiny, tiny_mlx, asked, tied):
    theirs, ours = (torch_pair[0], pair[0]) if tied else (tiny, tiny_mlx)
    ids = asked[0][:40] if tied else list(b"Some forty bytes of text, to be read once.")
    taps = (0, 4, 2)
    out = theirs.forward(torch.tensor([ids]), theirs.new_cache(1), Span(0, (0,), len(ids)), taps)
    logits, features = ours.forward(mx.array(ids), ours.new_caches(), taps)
    np.testing.assert_allclose(np.array(features), out.features.numpy(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.array(logits), theirs.logits(out.hidden)[0].numpy(), rtol=1e-3, atol=1e-3)
    assert (ours.eos_ids, ours.decodable, ours.vocab_size) == (theirs.eos_ids, theirs.decodable, theirs.vocab_size)
    assert (ours.context_limit, ours.hidden_size, ours.dtype) == (
        theirs.context_limit,
        theirs.hidden_size,
        theirs.dtype,
    )
    assert ours.head_digest == theirs.head_digest


def test_a_rotary_base_in_the_new_layout_is_not_lost(tmp_path):
    theirs = tiny_target("llama", rope_parameters={"rope_theta": 300.0, "rope_type": "default"})
    theirs.model.save_pretrained(tmp_path)
    theirs.tokenizer.save_pretrained(tmp_path)
    assert '"rope_theta": 300.0' in (tmp_path / "config.json").read_text().split("rope_parameters")[1]
    ours, ids = load_mlx_target(str(tmp_path)), list(b"A base that is lost shows in every position but the first.")
    logits, _ = ours.forward(mx.array(ids), ours.new_caches())
    hidden = theirs.forward(torch.tensor([ids]), theirs.new_cache(1), Span(0, (0,), len(ids))).hidden
    np.testing.assert_allclose(np.array(logits), theirs.logits(hidden)[0].numpy(), rtol=1e-3, atol=1e-3)


def test_a_window_that_mlx_lm_leaves_out_bounds_the_context(tmp_path):
    theirs = tiny_target("mistral", window=12)
    theirs.model.save_pretrained(tmp_path)
    theirs.tokenizer.save_pretrained(tmp_path)
    assert load_mlx_target(str(tmp_path)).context_limit == 12


def test_taps_out_of_range_are_refused(pair):
    with pytest.raises(TargetError):
        pair[0].forward(mx.array([5]), pair[0].new_caches(), (5,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_tensors_cross_with_every_bit(dtype):
    tensor = (torch.randn(3, 5, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    assert torch.equal(to_torch(to_mlx(tensor)), tensor)


def test_a_model_that_changes_its_embeddings_is_refused_with_a_drafter(pair):
    sizes = gemma.ModelArgs(
        model_type="gemma",
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        vocab_size=262,
        num_key_value_heads=1,
    )
    target = MlxTarget(gemma.Model(sizes), tiny_tokenizer(), described(hidden_size=32), name="gemma")
    with pytest.raises(TargetError, match="changes its embeddings"):
        target.check_embedding()
    pair[0].check_embedding()


def test_parts_that_are_not_there_are_refused():
    with pytest.raises(TargetError, match="embed_tokens"):
        MlxTarget(SimpleNamespace(), tiny_tokenizer(), described(hidden_size=8), name="odd")
    with pytest.raises(TargetError, match="mlx-lm cannot load"):
        load_mlx_target("nano-that-is-nowhere/x")
    with pytest.raises(TargetError, match="'tpu'"):
        use_device("tpu")
