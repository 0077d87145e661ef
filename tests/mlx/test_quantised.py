"""Targets and drafters of 4 and 8 bits: the drafted answer is the plain one of the same rounded target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from dspine.checkpoint import export_specforge, load_drafter
from dspine.decode.sampling import SamplingParams
from dspine.errors import CheckpointError, TargetError
from dspine.serve.mlx.engine import MlxEngine
from dspine.serve.mlx.loading import load_mlx_drafter, load_mlx_pair, load_mlx_target
from dspine.target.loading import place_of

GREEDY = SamplingParams(max_new_tokens=48)


@pytest.mark.parametrize(("bits", "drafter_bits"), [(4, 4), (8, 8), (None, 4), (8, None)])
def test_the_drafter_changes_no_token(asked, torch_pair, bits, drafter_bits):
    target, drafter = load_mlx_pair("nano", "nano", dtype=torch.float32, bits=bits, drafter_bits=drafter_bits)
    plain, drafted = (MlxEngine(target, one).generate(asked[:3], GREEDY) for one in (None, drafter))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    rounds = [r for c in drafted for r in c.rounds]
    assert sum(r.kept for r in rounds) / len(rounds) > 2  # rounded weights still draft
    assert hasattr(target.embedding, "scales") == (bits is not None)
    assert target.head_digest == torch_pair[0].head_digest


def test_bits_that_are_not_there_and_rounding_twice_are_refused(fresh, tiny):
    target = fresh()
    with pytest.raises(TargetError, match="3 bits"):
        target.quantise(3)
    target.quantise(8)
    assert target.head_digest == tiny.head_digest  # that of the rows from before
    with pytest.raises(TargetError, match="quantised already"):
        target.quantise(4)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano as mlx-lm stores it in 8 bits."""
    source, folder = Path(place_of("nano")), tmp_path_factory.mktemp("nano-8bit")
    model, config = quantize_model(*load_model(source), 64, 8)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(source / name, folder / name)
    return folder


def test_a_drafter_whose_codes_hang_on_the_head_is_refused_over_a_rounded_one(stored):
    with pytest.raises(CheckpointError, match="LM head of digest"):
        load_mlx_drafter("nano", load_mlx_target(str(stored)))


def test_a_drafter_that_brings_its_codes_drafts_over_it(stored, torch_pair, asked, tmp_path):
    drafter = load_drafter("nano", torch_pair[0], packed=False)
    export_specforge(drafter, tmp_path / "d", torch_pair[0], training={"steps": 1}, dtype=torch.float32)
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    del config["dspine_format"]  # as SpecForge's own files have none
    (tmp_path / "d" / "config.json").write_text(json.dumps(config))
    target = load_mlx_target(str(stored), dtype=torch.float32)
    drafter = load_mlx_drafter(tmp_path / "d", target)
    plain, drafted = (MlxEngine(target, one).generate(asked[:2], GREEDY) for one in (None, drafter))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    rounds = [r for c in drafted for r in c.rounds]
    assert sum(r.kept for r in rounds) / len(rounds) > 2
