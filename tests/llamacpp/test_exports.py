"""Drafters of other methods, as `dspine export` writes them: llama.cpp loads them and drafts our engine's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.llamacpp.files import write_drafter, write_target
from tests.llamacpp.llama import LENGTH, ask
from tests.support.nano_prompts import asked
from tests.support.parallel import over

from dspine import SamplingParams, load_drafter, load_target
from dspine.checkpoint import LayoutName, export_drafter, save_drafter
from dspine.decode.engine import Engine
from dspine.target.builtin import shipped
from dspine.target.model import Target

pytestmark = pytest.mark.slow  # of an environment with xllamacpp; by `make test-llamacpp`
NANO = shipped("nano") / "target"
CASES: dict[str, tuple[str, LayoutName, str, dict[str, Any]]] = {
    "DFlash": ("dflash", LayoutName.specforge, "DFLASH", {}),
    "DFlash, causal": ("dflash", LayoutName.specforge, "DFLASH", {"is_causal": True}),
    "DSpark": ("dspark", LayoutName.speculators, "DSPARK", {"block_size": 7}),
}


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target("nano", packed=False)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("nano") / "nano.gguf"
    write_target(NANO, file)
    return file


def drafting(target: Target, folder: Path, prompt: list[int]) -> tuple[list[int], list[list[int]]]:
    """Our engine's answer, and the blocks that it drafted for it."""
    network = load_drafter(folder, target, packed=False)
    propose, blocks = network.propose, []

    def watched(cache: Any, first: int, anchors: Any, law: Any, uniforms: Any) -> Any:
        proposal = propose(cache, first, anchors, law, uniforms)
        blocks.append(proposal.tokens[0].tolist())
        return proposal

    network.propose = watched
    params = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    [completion] = Engine(target, network).generate([prompt], params)
    return list(completion.token_ids), blocks


def drafter_file(target: Target, folder: Path, kind: str, layout: LayoutName, **sizes: Any) -> tuple[Path, int]:
    """A random drafter, exported and written for llama.cpp, and how many tokens it drafts."""
    drafter = over(target, kind, **{"block_size": 8, "target_layer_ids": (1, 3, 4), **sizes})
    save_drafter(drafter, folder / "own", target=target, training={}, dtype=torch.float32)
    export_drafter(folder / "own", folder / "out", target, layout)
    write_drafter(folder / "out", NANO, folder / "draft.gguf")
    return folder / "draft.gguf", drafter.candidates


@pytest.mark.parametrize(("kind", "layout", "way", "sizes"), CASES.values(), ids=CASES.keys())
def test_a_drafter_drafts_the_tokens_of_our_engine(target, written, tmp_path, kind, layout, way, sizes):
    file, places = drafter_file(target, tmp_path, kind, layout, **sizes)
    prompts = asked(target, 3)
    drafted = set()
    for prompt, answer in zip(prompts, ask(prompts, written, file, way, places), strict=True):
        ids, blocks = drafting(target, tmp_path / "out", prompt)
        assert answer.tokens == ids
        assert len(answer.blocks) > LENGTH // 2
        # Near the cap llama.cpp drafts no further than the answer goes, and in its last step not at all.
        assert answer.blocks == [own[: len(found)] for own, found in zip(blocks, answer.blocks, strict=False)]
        drafted |= {token for block in answer.blocks for token in block}
    assert len(drafted) > 15  # it drafts this and that


def test_a_dflash2_drafter_drafts_and_leaves_the_answer_as_it_is(target, written, tmp_path):
    sizes = {"conv_group_size": 16, "top_k": 8}
    file, places = drafter_file(target, tmp_path, "dflash2", LayoutName.speculators, **sizes)
    prompts = asked(target, 3)
    drafted = ask(prompts, written, file, "DFLASH", places)
    plain = ask(prompts, written)
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in plain]
    assert all(answer.drafted > LENGTH for answer in drafted)
    assert all(answer.drafted == 0 for answer in plain)
