"""Drafters in public layouts: every field and every tensor where it belongs, and text that is the target's."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoint.published import FOLDERS, IDS, N, V, deepspec_dspark, domino, maps, specforge_eagle3
from tests.support.tiny_target import tiny_target
from torch import Tensor

from dspine.checkpoint import CheckpointWarning, load_drafter, read_config
from dspine.checkpoint.public.vocabulary import mapped_ids
from dspine.checkpoint.weights import stored_in
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.registry import Network, kind_of
from dspine.errors import CheckpointError
from dspine.target.model import Target

PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt"), tuple(b"3")]


def quietly(folder: Path, target: Target) -> Network:
    """Load without a word: files that do not say how deep their target is are no matter of these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_drafter(folder, target, packed=False)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_and_every_tensor(target: Target, tmp_path: Path, name: str) -> None:
    written = FOLDERS[name](target)
    drafter = quietly(written.write(tmp_path / "d"), target)
    assert kind_of(drafter) == written.kind
    found = {key: getattr(drafter.config, key) for key in written.sizes}
    assert found == written.sizes
    state = drafter.state_dict()
    rest = state.keys() - set(written.ours.values())
    assert rest <= {"selection.confidence_head.proj.bias"}  # zero, where the file has none
    assert all(not state[key].any() for key in rest)
    for theirs, ours in written.ours.items():
        assert torch.equal(state[ours], written.tensors[theirs].float()), theirs
    assert (drafter.draft_ids is None) if written.ids is None else torch.equal(drafter.draft_ids, written.ids)
    said = read_config(tmp_path / "d")
    assert (said.layout, said.unknown) == (written.layout, {})
    assert said.vocabulary is None or said.vocabulary.size == len(IDS)


@pytest.mark.parametrize("name", FOLDERS)
def test_it_drafts_and_the_text_is_the_targets(target: Target, tmp_path: Path, name: str) -> None:
    drafter = quietly(FOLDERS[name](target).write(tmp_path / "d"), target)
    params = SamplingParams(max_new_tokens=12)
    plain = Engine(target).generate(PROMPTS, params)
    drafted = Engine(target, drafter, max_batch=2).generate(PROMPTS, params)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]


def test_what_a_file_leaves_to_its_target(tmp_path: Path) -> None:
    deep = tiny_target(num_hidden_layers=9)
    written = specforge_eagle3(deep)
    del written.config["eagle_config"]
    folder = written.write(tmp_path / "d")
    assert quietly(folder, deep).target_layer_ids == (1, 3, 5)  # 1, N/2 - 1, N - 4
    with pytest.raises(CheckpointError, match=r"depends on its target\n.*--layout dspine --target TARGET"):
        read_config(folder)


def test_a_depth_that_nobody_says_is_noted(target: Target, tmp_path: Path) -> None:
    folder = specforge_eagle3(target).write(tmp_path / "d")
    assert read_config(folder).drafter.num_target_layers == N  # the taps need no less
    with pytest.raises(CheckpointError, match=r"\[1, 2, 4\]: ids are distinct and in 0..2 for a target of 4 layers"):
        load_drafter(folder, tiny_target(num_hidden_layers=4))


# ------------------------------------------------------------------ draft vocabularies


def ids_of(tmp_path: Path, tensors: dict[str, Tensor]) -> Tensor:
    save_file(tensors, tmp_path / "maps.safetensors")
    return mapped_ids(stored_in(tmp_path / "maps.safetensors"), V, tmp_path)


def test_offsets_and_ids(tmp_path: Path) -> None:
    given = maps()
    assert torch.equal(ids_of(tmp_path, given), IDS)
    assert torch.equal(ids_of(tmp_path, {"d2t": given["d2t"]}), IDS)
    assert torch.equal(ids_of(tmp_path, {"d2t": IDS, "t2d": given["t2d"]}), IDS)
    high = torch.arange(V - 40, V)  # as offsets, beyond the vocabulary
    with pytest.raises(CheckpointError, match="as ids, not offsets, they would be sound"):
        ids_of(tmp_path, {"d2t": high})
    with pytest.raises(CheckpointError, match="t2d names 100 of 320 ids"):
        ids_of(tmp_path, given | {"d2t": given["d2t"] + 1})
    with pytest.raises(CheckpointError, match="gives no rising ids"):
        ids_of(tmp_path, {"d2t": torch.tensor([5, 1, 0])})


# ------------------------------------------------------------------ the target's tables


def test_tables_that_are_not_the_targets(target: Target, tmp_path: Path) -> None:
    written = deepspec_dspark(target)
    written.tensors["lm_head.weight"][7, 3] += 1
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs from that of tiny.* by up to \d"):
        load_drafter(written.write(tmp_path / "d"), target)
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight differs"):
        load_drafter(deepspec_dspark(target).write(tmp_path / "e"), tiny_target(seed=3))


def test_half_of_the_head_in_the_draft_vocabulary(target: Target, tmp_path: Path) -> None:
    written = FOLDERS["speculators DFlash"](target)
    written.tensors["lm_head.weight"] = target.head_weight.detach()[: len(IDS)].clone()
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs"):
        load_drafter(written.write(tmp_path / "d"), target)


def test_unknown_keys_are_named(target: Target, tmp_path: Path) -> None:
    written = domino(target)
    written.config["dflash_config"]["novel"] = 1
    with pytest.warns(CheckpointWarning, match=r"unknown keys .*: dflash_config.novel"):
        load_drafter(written.write(tmp_path / "d"), target)


@pytest.mark.parametrize(("name", "causal"), [("speculators DFlash", None), ("speculators DFlash2", False)])
def test_sliding_layers_where_nothing_is_said(target: Target, tmp_path: Path, name: str, causal: bool | None) -> None:
    written = FOLDERS[name](target)
    del written.config["sliding_window_non_causal"]
    kinds = ["sliding_attention", "full_attention"]
    written.config["transformer_layer_config"] |= {"layer_types": kinds, "sliding_window": 5}
    assert read_config(written.write(tmp_path / "d")).drafter.is_causal is causal
