"""Drafters of other methods, as `dspine export` writes them: vLLM loads them and drafts our engine's tokens.

DFlash2 and DSpark are drafted by vLLM's model runner V2 alone, which needs Triton: on a CPU there is none.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.nano_prompts import asked
from tests.support.parallel import over
from tests.vllm.engines import Served, speculative
from tests.vllm.ours import Ours
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

from dspine.checkpoint import LayoutName, export_drafter, save_drafter
from dspine.serve.vllm.cpu import LayersOnCpu
from dspine.target.builtin import shipped

SIZES = {"block_size": 8, "target_layer_ids": (1, 3, 4)}
DFLASH = {
    "SpecForge": (LayoutName.specforge, {}),
    "SpecForge, causal": (LayoutName.specforge, {"is_causal": True}),
    "speculators": (LayoutName.speculators, {}),
}


def exported(ours: Ours, folder: Path, kind: str, layout: LayoutName, **sizes) -> Path:
    drafter = over(ours.target, kind, **{**SIZES, **sizes})
    save_drafter(drafter, folder / "own", target=ours.target, training={}, dtype=torch.float32)
    export_drafter(folder / "own", folder / "out", ours.target, layout)
    return folder / "out"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("layout", "sizes"), DFLASH.values(), ids=DFLASH.keys())
def test_a_dflash_drafter_drafts_the_tokens_of_our_engine(ours, tmp_path, monkeypatch, layout, sizes):
    monkeypatch.setattr(DFlashQwen3Model, "_normalize_context_k", LayersOnCpu._normalize_context_k)
    folder = exported(ours, tmp_path, "dflash", layout, **sizes)
    served = Served.start(folder, disable_log_stats=True)
    ours = Ours.load(folder, ours.target)
    prompts = asked(ours.target, 3)
    answers = served.answers(prompts, max_tokens=24)
    drafted = set()
    for prompt, answer in zip(prompts, answers, strict=True):
        ids, blocks = ours.drafting(prompt, max_new_tokens=24)
        assert list(answer.outputs[0].token_ids) == ids
        found = served.drafted_for(answer)
        assert found[: len(blocks)] == blocks
        drafted |= {token for block in blocks for token in block.tokens}
    assert len(drafted) > 30  # it drafts this and that


@pytest.mark.parametrize(
    ("kind", "method", "architecture", "words"),
    [
        ("dflash2", "dflash", "DFlash2DraftModel", "candidate-head"),
        ("dspark", "dspark", "Qwen3DSparkModel", "dspark"),
    ],
)
def test_what_the_older_runner_does_not_draft_is_known_to_vllm_and_refused_by_it(
    ours, tmp_path, kind, method, architecture, words
):
    folder = exported(ours, tmp_path, kind, LayoutName.speculators)
    given = speculative(folder, method=method, num_speculative_tokens=7)
    with pytest.raises((ValueError, NotImplementedError), match=words):
        EngineArgs(str(shipped("nano") / "target"), max_model_len=1024, speculative_config=given).create_engine_config()
