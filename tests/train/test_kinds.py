"""A whole run of each other kind, by the recipe that trains a DSpine: same data, same windows, same anchors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.tiny_target import tiny_target
from tests.train.test_trainer import prepared, recipe, steps_of, weights  # noqa: F401  recipe is a fixture

from dspine.checkpoint import load_drafter
from dspine.drafter.registry import kind_of
from dspine.errors import ConfigError
from dspine.train.trainer import train

NOT_DSPINE = ["drafter.transfer_rank=null", "drafter.message_size=null", "drafter.top_k=null"]
KINDS = {
    "dflash": ["drafter.kind=dflash", "objective.dpace=0.5", "drafter.is_causal=true"],
    "dflash2": ["drafter.kind=dflash2", "drafter.top_k=4", "objective.selector_weight=0.5"],
    "domino": ["drafter.kind=domino", "drafter.logits_start=1", "objective.base_share_end_ratio=0.5"],
    "dspark": ["drafter.kind=dspark", "drafter.markov_head=rnn", "drafter.block_size=3"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_a_drafter_that_loads(recipe: Path, tmp_path: Path, kind: str) -> None:  # noqa: F811
    summary = train(recipe, [*NOT_DSPINE, *KINDS[kind], "training.steps=12"])
    assert summary.finished
    assert summary.acceptance is not None
    assert summary.acceptance.tau >= 1
    assert summary.acceptance.tau_unrefined is None
    lines = steps_of(tmp_path)
    assert lines[-1]["ce"] < lines[0]["ce"]
    assert "beta" not in lines[0]
    assert [line["base_share"] for line in lines if "base_share" in line][6:] == ([0.0] * 6 if kind == "domino" else [])
    drafter = load_drafter(str(summary.drafter), tiny_target(), packed=False)
    assert kind_of(drafter) == kind
    assert len(drafter.draft_ids) == 200
    trained = weights(tmp_path)["model"]
    for name, value in drafter.state_dict().items():
        assert torch.equal(value.float(), trained[name].bfloat16().float()), name


def test_a_run_of_eagle3_leaves_a_drafter_that_loads(recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    """It has one layer, which is no backbone, and learns from every position."""
    sizes = ["drafter.kind=eagle3", "drafter.num_hidden_layers=null", "drafter.qk_norm=true"]
    summary = train(recipe, [*NOT_DSPINE, *sizes, "objective.step_decay=0.9", "training.steps=12"])
    assert summary.finished
    lines = steps_of(tmp_path)
    assert lines[-1]["ce_1"] < lines[0]["ce_1"]
    drafter = load_drafter(str(summary.drafter), tiny_target(), packed=False)
    assert kind_of(drafter) == "eagle3"
    assert len(drafter.draft_ids) == len(drafter.lm_head.weight) == 200
    trained = weights(tmp_path)["model"]
    for name, value in drafter.state_dict().items():
        assert torch.equal(value.float(), trained[name].bfloat16().float()), name


def test_every_kind_starts_from_the_same_backbone_and_sees_the_same_data(recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    dspine = prepared(recipe, f"output={tmp_path / 'dspine'}")
    ours = dspine.drafter.backbone.state_dict()
    for kind, overrides in KINDS.items():
        other = prepared(recipe, *NOT_DSPINE, *overrides, f"output={tmp_path / kind}")
        theirs = other.drafter.backbone.state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
        assert all("_conv." in name for name in theirs.keys() - ours.keys())
        assert other.samples == dspine.samples
        same = {name for name in dspine.identity if dspine.identity[name] == other.identity[name]}
        assert same == {"target", "responses", "training"}


def test_a_kind_refuses_what_it_does_not_have(recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=r"drafter.kind is 'medusa'"):
        prepared(recipe, "drafter.kind=medusa")
    with pytest.raises(ConfigError, match="unknown message_size, top_k, transfer_rank"):
        prepared(recipe, "drafter.kind=dflash")
    with pytest.raises(ConfigError, match="has no alignment_weight"):
        prepared(recipe, *NOT_DSPINE, "drafter.kind=dflash", "objective.alignment_weight=0.5")
    start = train(recipe, ["training.steps=1", f"output={tmp_path / 'start'}"]).drafter
    with pytest.raises(ConfigError, match="is a DSpine drafter"):
        prepared(recipe, *NOT_DSPINE, "drafter.kind=dflash", f"drafter.start_from={start}")
