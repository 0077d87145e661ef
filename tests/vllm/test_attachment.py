"""What the plugin attaches to, in the vLLM that is installed."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
import vllm
from vllm import ModelRegistry
from vllm.plugins import load_general_plugins
from vllm.v1.spec_decode.dflash import DFlashProposer

from dspine.errors import ServeError
from dspine.serve.vllm import contract
from dspine.serve.vllm.plugin import ARCHITECTURES


def test_this_vllm_is_the_one_that_was_tested():
    contract.check(vllm.__version__, contract.SERVING)


def test_the_names_of_our_drafters_are_registered():
    load_general_plugins()
    assert set(ARCHITECTURES) <= set(ModelRegistry.get_supported_archs())


def test_another_vllm_is_refused_by_name_where_a_drafter_is_asked_for(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    monkeypatch.delitem(sys.modules, "dspine.serve.vllm.entry", raising=False)
    with pytest.raises(ServeError, match=r"tested with vLLM 0\.32\.0, and this is vLLM 0\.33\.0"):
        importlib.import_module("dspine.serve.vllm.entry")


def test_the_hook_took_and_a_drafter_that_was_not_attached_does_not_draft(drafted, monkeypatch):
    assert hasattr(DFlashProposer._maybe_share_lm_head, "__wrapped__")
    model = drafted.runner.drafter.model
    monkeypatch.setattr(model, "_tables", None)
    with pytest.raises(ServeError, match="did not attach"):
        model(torch.zeros(8, dtype=torch.int32), torch.arange(8))


def test_weights_are_not_changed_under_a_running_engine(drafted):
    with pytest.raises(ServeError, match="Start the engine anew"):
        drafted.runner.drafter.model.load_weights(())
