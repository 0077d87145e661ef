"""Drafters in MLX propose what the torch ones propose, by every switch and from every layout."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from tests.checkpoint.folders import random_drafter, to_split
from tests.support.tiny_target import MASK

from dspine.checkpoint import export_specforge, load_drafter, save_drafter
from dspine.checkpoint.temperatures import write_temperatures
from dspine.drafter.config import DSpineConfig
from dspine.drafter.dflash import DFlashConfig, dflash
from dspine.drafter.dflash2 import DFlash2Config
from dspine.drafter.registry import KINDS
from dspine.errors import CheckpointError, TargetError
from dspine.kernels.kv import Span
from dspine.kernels.law import Law as TorchLaw
from dspine.serve.mlx.law import Law
from dspine.serve.mlx.loading import load_mlx_drafter

SWITCHES = {
    "paper": {},
    "two ways": {"is_causal": False},
    "some layers": {"injected_layers": (1,)},
    "no layer": {"injected_layers": (), "refined": False},
    "anchor alone": {"predecessor": "none"},
    "reach": {"reach": 3},
    "ungated": {"gated": False},
    "unrefined": {"refined": False},
    "confident": {"confidence": True},
    "confident, unrefined": {"confidence": True, "refined": False},
}
DFLASH = {
    "both ways": {},
    "causal": {"is_causal": True},
    "next token": {"logits_start": 0},
    "sliding": {"sliding_window": 4, "sliding_layers": (1,)},
    "sliding both ways": {"sliding_window": 3, "sliding_layers": (0, 1), "is_causal": False},
    "confident": {"confidence": True},
}
LAWS = {"greedy": (0.0, 0, 1.0, 0.0), "hot": (1.2, 0, 1.0, 0.0), "cut": (0.9, 3, 0.95, 0.05)}


def random_dflash(target, draft_ids=None, **overrides):
    config = DFlashConfig.for_target(
        target.facts, MASK, **{"num_hidden_layers": 2, "target_layer_ids": (1, 3, 4), "block_size": 4, **overrides}
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(7)
        drafter = dflash(config, target.embedding, target.head_weight.detach(), draft_ids)
        for parameter in drafter.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return drafter.eval()


def compare(torch_drafter, ours):
    """After two helpings of features, both propose the same for every law."""
    size = torch_drafter.config.feature_size
    features = torch.randn(1, 9, size, generator=torch.Generator().manual_seed(1))
    cache, context = torch_drafter.new_cache(1), ours.new_context()
    for start, stop in ((0, 5), (5, 9)):
        part = features[:, start:stop]
        tokens = torch.zeros(1, stop - start, dtype=torch.int64)
        torch_drafter.observe(cache, Span(0, (start,), stop - start), part, (stop - start,), tokens)
        ours.observe(context, mx.array(part.numpy()))
    for law in LAWS.values():
        noise = torch.rand(1, torch_drafter.candidates, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            wanted = torch_drafter.propose(
                cache, 0, torch.tensor([65]), TorchLaw.of(*([each] for each in law)), noise if law[0] else None
            )
        got = ours.propose(context, mx.array([65]), Law(*law), mx.array(noise[0].numpy()) if law[0] else None)
        assert context.length == 9
        assert got.tokens.tolist() == wanted.tokens[0].tolist()
        for one, other in ((got.probs, wanted.probs), (got.confidence, wanted.confidence)):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(np.array(one), other[0].numpy(), atol=2e-5)
        assert (got.support is None) == (wanted.support is None)
        if got.support is not None:
            assert got.support.tolist() == wanted.support[0].tolist()


@pytest.mark.parametrize("switch", SWITCHES)
def test_dspine_proposes_the_same(tiny, tiny_mlx, tmp_path, switch):
    drafter = random_drafter(tiny, **SWITCHES[switch])
    save_drafter(drafter, tmp_path / "d", target=tiny, training={}, dtype=torch.float32)
    compare(load_drafter(tmp_path / "d", tiny), load_mlx_drafter(tmp_path / "d", tiny_mlx))


@pytest.mark.parametrize("make", [random_drafter, random_dflash])
def test_calibrated_confidences_are_the_same(tiny, tiny_mlx, tmp_path, make):
    save_drafter(make(tiny, confidence=True), tmp_path / "d", target=tiny, training={}, dtype=torch.float32)
    write_temperatures(tmp_path / "d", (0.5, 1.0, 2.0), {})
    compare(load_drafter(tmp_path / "d", tiny), load_mlx_drafter(tmp_path / "d", tiny_mlx))


@pytest.mark.parametrize("kind", DFLASH)
def test_dflash_proposes_the_same(tiny, tiny_mlx, tmp_path, kind):
    drafter = random_dflash(tiny, **DFLASH[kind])
    save_drafter(drafter, tmp_path / "d", target=tiny, training={}, dtype=torch.float32)
    compare(load_drafter(tmp_path / "d", tiny), load_mlx_drafter(tmp_path / "d", tiny_mlx))


@pytest.mark.parametrize("make", [random_drafter, random_dflash])
def test_a_restricted_vocabulary_proposes_the_same(tiny, tiny_mlx, tmp_path, make):
    ids = torch.arange(3, 240, 2)
    save_drafter(make(tiny, ids), tmp_path / "d", target=tiny, training={}, dtype=torch.float32)
    compare(load_drafter(tmp_path / "d", tiny), load_mlx_drafter(tmp_path / "d", tiny_mlx))


@pytest.mark.parametrize("split", [False, True])
def test_specforges_layouts_propose_the_same(tiny, tiny_mlx, tmp_path, split):
    drafter = random_drafter(tiny, block_size=16) if split else random_drafter(tiny)
    export_specforge(drafter, tmp_path / "d", tiny, training={"steps": 1}, dtype=torch.float32)
    if split:
        to_split(tmp_path / "d")
    compare(load_drafter(tmp_path / "d", tiny), load_mlx_drafter(tmp_path / "d", tiny_mlx))


def test_nano_proposes_the_same(pair, torch_pair):
    compare(torch_pair[1], pair[1])


def test_what_the_loader_refuses_is_refused_here(tiny, tiny_mlx, tmp_path):
    drafter = random_drafter(tiny)
    save_drafter(drafter, tmp_path / "d", target=tiny, training={}, dtype=torch.float32)
    (tmp_path / "d" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        load_mlx_drafter(tmp_path / "d", tiny_mlx)
    with pytest.raises(CheckpointError, match="hidden_size"):
        load_mlx_drafter("nano", tiny_mlx)


def test_other_kinds_are_refused_by_name(tiny, tiny_mlx, tmp_path):
    config = DFlash2Config.for_target(tiny.facts, MASK, num_hidden_layers=2, target_layer_ids=(1, 3), block_size=4)
    drafter = KINDS["dflash2"].build(config, tiny.embedding, tiny.head_weight.detach(), None)
    save_drafter(drafter, tmp_path / "d", target=tiny, training={}, dtype=torch.float32)
    with pytest.raises(CheckpointError, match="DFlash2"):
        load_mlx_drafter(tmp_path / "d", tiny_mlx)


def test_a_target_that_was_quantised_too_early_is_refused(tiny, fresh, tmp_path):
    target = fresh()
    save_drafter(random_drafter(tiny), tmp_path / "d", target=tiny, training={}, dtype=torch.float32)
    target.quantise(8)
    with pytest.raises(TargetError, match="Load the drafter first"):
        load_mlx_drafter(tmp_path / "d", target)


def test_sizes_of_both_kinds_are_told_apart():
    assert not issubclass(DFlash2Config, DFlashConfig | DSpineConfig)
