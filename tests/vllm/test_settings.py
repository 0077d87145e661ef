"""Settings that are refused, as vLLM itself resolves them, and drafters that do not start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.vllm.engines import SETTINGS, speculative
from vllm import envs
from vllm.engine.arg_utils import EngineArgs

from dspine.checkpoint.opening import find_drafter
from dspine.errors import DspineError
from dspine.serve.vllm.entry import DSpineDraftModel
from dspine.target.builtin import shipped

NANO = str(shipped("nano") / "target")


def config(drafter: str | Path = "nano", model: str = NANO, **settings):
    """vLLM's configuration, resolved."""
    more = settings.pop("speculative", {})
    given = {**SETTINGS, "speculative_config": speculative(drafter, **more), **settings}
    return EngineArgs(model, **given).create_engine_config()


def refused(resolved) -> str:
    with pytest.raises(DspineError) as caught:
        DSpineDraftModel(vllm_config=resolved)
    assert caught.value.fix
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"draft_sample_method": "probabilistic"}, '"draft_sample_method": "probabilistic"'),
        ({"rejection_sample_method": "block"}, '"rejection_sample_method": "block"'),
        ({"num_speculative_tokens": 8}, "this drafter was trained to draft 7"),
        ({"method": "draft_model"}, 'Give --speculative-config \'{"method": "dflash"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_name(more, words):
    assert words in refused(config(speculative=more)).replace("\n", " Give ")


def test_the_newer_model_runner_is_refused_by_name(monkeypatch):
    resolved = config()
    # As the variable of that name: an engine that ran in this process has vLLM read it no more.
    monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", True)
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in refused(resolved)


def test_a_drafter_in_the_place_of_a_target_is_refused_with_the_command_that_is_right():
    drafter = str(find_drafter("nano"))
    text = refused(EngineArgs(drafter, **SETTINGS, skip_tokenizer_init=True).create_engine_config())
    assert f'vllm serve TARGET --speculative-config \'{{"method": "dflash", "model": "{drafter}"' in text


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(find_drafter("nano"), tmp_path / "drafter"))


def edit(folder: Path, change) -> None:
    file = folder / "config.json"
    said = json.loads(file.read_text())
    change(said)
    file.write_text(json.dumps(said))


def test_a_block_that_vllm_would_let_see_ahead_is_refused(copied):
    edit(copied, lambda said: (said.pop("is_causal"), said["dflash_config"].pop("causal")))
    assert 'Write "is_causal": true' in refused(config(copied))


def test_a_drafter_of_another_method_is_sent_to_its_own(copied):
    from safetensors.torch import load_file, save_file

    weights = copied / "model.safetensors"
    kept = {k: v for k, v in load_file(weights).items() if not k.startswith(("injection.", "transfer_"))}
    save_file(kept, weights, metadata={"format": "pt"})
    edit(copied, lambda said: said.pop("dspine_config"))
    text = refused(config(copied))
    assert "holds a DFlash drafter" in text
    assert '"method": "dflash"' in text
