"""What is written comes back: same network, same proposals, through every layout."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoint.folders import (
    TRAINING,
    drop,
    edit_config,
    edit_tensors,
    proposal,
    put,
    random_drafter,
    same_proposal,
    to_split,
)
from tests.support.tiny_target import THINKING_TEMPLATE, tiny_target

from dspine.checkpoint import (
    CheckpointWarning,
    check_mask_token,
    export_specforge,
    load_drafter,
    loading,
    official,
    read_config,
    save_drafter,
)
from dspine.checkpoint.schema import file_name, parameter_shapes, to_module
from dspine.drafter.dspine import DSpine
from dspine.errors import CheckpointError
from dspine.target.model import Target


@pytest.fixture(autouse=True)
def _no_warning() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        yield


def test_the_module_has_exactly_the_published_names_and_shapes(drafter: DSpine) -> None:
    state = drafter.state_dict()
    assert {file_name(name): tuple(t.shape) for name, t in state.items()} == parameter_shapes(drafter.config)
    assert to_module({file_name(name): t for name, t in state.items()}).keys() == state.keys()


def test_own_layout_keeps_every_bit(target: Target, drafter: DSpine, own: Path, tmp_path: Path) -> None:
    loaded = load_drafter(own, target, packed=False)
    assert same_proposal(drafter, loaded)
    assert torch.equal(loaded.codes, drafter.codes)
    assert loaded.config == drafter.config
    assert not loaded.training
    save_drafter(loaded, tmp_path / "again", target=target, training=TRAINING, dtype=torch.float32)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (own / "model.safetensors").read_bytes()
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == json.loads((own / "config.json").read_text())


def test_export_to_specforge_and_back(target: Target, drafter: DSpine, own: Path, tmp_path: Path) -> None:
    export_specforge(load_drafter(own, target, packed=False), tmp_path / "out", target, dtype=torch.float32)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(stored["transfer_codes"], drafter.codes)
    assert bool(stored["transfer_ready"])
    assert not {"transfer_mean", "transfer_basis"} & stored.keys()
    loaded = load_drafter(tmp_path / "out", target, packed=False)
    assert torch.equal(loaded.codes, drafter.codes)
    assert same_proposal(drafter, loaded)


def test_a_drafter_without_basis_is_saved_with_its_codes(
    target: Target, drafter: DSpine, specforge: Path, tmp_path: Path
) -> None:
    save_drafter(
        load_drafter(specforge, target, packed=False), tmp_path / "out", target=target, training={}, dtype=torch.float32
    )
    assert read_config(tmp_path / "out").layout == "SpecForge"
    assert same_proposal(drafter, load_drafter(tmp_path / "out", target, packed=False))


def test_weights_are_bfloat16_by_default_and_the_transfer_space_float32(
    target: Target, drafter: DSpine, tmp_path: Path
) -> None:
    save_drafter(drafter, tmp_path / "out", target=target, training=TRAINING)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    kinds = {name: tensor.dtype for name, tensor in stored.items()}
    assert kinds.pop("transfer_ready") == torch.bool
    assert {kinds.pop("transfer_mean"), kinds.pop("transfer_basis")} == {torch.float32}
    assert set(kinds.values()) == {torch.bfloat16}
    loaded = load_drafter(tmp_path / "out", target, packed=False)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}  # the target's
    assert loaded.codes.dtype == torch.float32
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, drafter.get_parameter(name).bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_target_in_another_dtype_has_the_same_digest(dtype: torch.dtype, own: Path, drafter: DSpine) -> None:
    loaded = load_drafter(own, tiny_target(dtype=dtype), packed=False)
    assert loaded.dtype == dtype
    assert loaded.codes.dtype == torch.float32
    assert torch.allclose(loaded.codes, drafter.codes, atol=2e-2)


def test_dtype_is_the_callers_choice(target: Target, own: Path) -> None:
    assert load_drafter(own, target, dtype=torch.bfloat16, packed=False).dtype == torch.bfloat16


@pytest.mark.parametrize("layout", ["own", "specforge"])
def test_every_parameter_comes_from_the_file(
    layout: str, target: Target, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = request.getfixturevalue(layout)

    class Poisoned(DSpine):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            for parameter in self.parameters():
                torch.nn.init.constant_(parameter, float("nan"))

    monkeypatch.setattr(loading, "DSpine", Poisoned)
    loaded = load_drafter(folder, target, packed=False)
    assert isinstance(loaded, Poisoned)
    assert all(bool(torch.isfinite(p).all()) for p in loaded.parameters())
    assert bool(torch.isfinite(loaded.codes).all())


@pytest.mark.parametrize("tied", [False, True])
def test_head_and_embedding_stay_the_targets(tied: bool, tmp_path: Path) -> None:
    target = tiny_target(tie_word_embeddings=tied)
    save_drafter(random_drafter(target), tmp_path / "out", target=target, training={})
    before = target.embedding.weight.clone()  # type: ignore[operator]
    loaded = load_drafter(tmp_path / "out", target, dtype=torch.bfloat16, packed=False)
    assert loaded.head.data_ptr() == target.head_weight.data_ptr()
    assert torch.equal(target.embedding.weight, before)  # type: ignore[arg-type]
    assert not any("embed" in name or "head" in name for name in load_file(tmp_path / "out" / "model.safetensors"))


def test_loading_leaves_the_random_state_alone(target: Target, own: Path) -> None:
    before = torch.random.get_rng_state()
    load_drafter(own, target, packed=False)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_block_size_counts_the_anchor(target: Target, own: Path) -> None:
    loaded = load_drafter(own, target, packed=False)
    assert (loaded.block_size, loaded.candidates) == (4, 3)
    assert proposal(loaded).tokens.shape == (2, 3)


def test_rope_theta_old_and_new_place(target: Target, own: Path) -> None:
    old = load_drafter(own, target, packed=False)

    def move(config: dict[str, object]) -> None:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}

    edit_config(own, move)
    new = load_drafter(own, target, packed=False)
    assert new.config.rope_theta == old.config.rope_theta == 20000.0
    assert torch.equal(new.backbone.rotary.inverse_frequencies, old.backbone.rotary.inverse_frequencies)
    edit_config(own, put("rope_parameters", "rope_theta", value=500.0))
    assert not same_proposal(old, load_drafter(own, target, packed=False))


def test_restricted_draft_vocabulary(target: Target, tmp_path: Path) -> None:
    ids = torch.arange(3, 250, 7)
    drafter = random_drafter(target, draft_ids=ids)
    save_drafter(drafter, tmp_path / "own", target=target, training={}, dtype=torch.float32)
    loaded = load_drafter(tmp_path / "own", target, packed=False)
    assert loaded.draft_ids is not None
    assert torch.equal(loaded.draft_ids, ids)
    assert same_proposal(drafter, loaded)
    export_specforge(loaded, tmp_path / "specforge", target, dtype=torch.float32)
    assert same_proposal(drafter, load_drafter(tmp_path / "specforge", target, packed=False))
    assert set(load_file(tmp_path / "specforge" / "model.safetensors")) == (
        parameter_shapes(drafter.config).keys() | {"transfer_codes", "transfer_ready"}
    )


def test_codes_in_bfloat16(target: Target, drafter: DSpine, specforge: Path) -> None:
    edit_tensors(specforge, lambda t: t.update(transfer_codes=t["transfer_codes"].bfloat16()))
    loaded = load_drafter(specforge, target, packed=False)
    assert torch.equal(loaded.codes, drafter.codes.bfloat16().float())


def test_shards(target: Target, drafter: DSpine, own: Path) -> None:
    tensors = load_file(own / "model.safetensors")
    (own / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[:9],
        "model-00002-of-00002.safetensors": names[9:],
    }
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, own / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (own / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same_proposal(drafter, load_drafter(own, target, packed=False))
    (own / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names model-00002-of-00002\.safetensors, which is not there"):
        load_drafter(own, target, packed=False)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_authors_split_layout(target: Target, drafter: DSpine, specforge: Path, wrapped: bool) -> None:
    to_split(specforge, wrapped)
    # The reference code drafts blocks of 16 whatever its config says; this one says 4.
    with pytest.warns(CheckpointWarning, match="block_size is 4"):
        loaded = load_drafter(specforge, target, packed=False)
    assert loaded.block_size == 16
    assert torch.equal(loaded.codes, drafter.codes)
    assert read_config(specforge).layout.startswith("split")


def test_split_layout_without_dspine_config(target: Target, specforge: Path) -> None:
    to_split(specforge, wrapped=False)
    edit_config(specforge, drop("dspine_config"))
    edit_config(specforge, put("block_size", value=16))
    with pytest.warns(CheckpointWarning, match="no dspine_config"):
        loaded = load_drafter(specforge, target, packed=False)
    assert (loaded.config.transfer_rank, loaded.config.message_size, loaded.config.top_k) == (16, 8, 16)


def test_completing_the_table_is_all_that_the_official_layout_needs(
    target: Target, drafter: DSpine, specforge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_config(specforge, put("dflash_config", "selected_prefix_code_bridge", value={"rank": 16}))
    edit_config(specforge, put("architectures", value=["DFlashDraftModel"]))

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["transfer_ready"]
        for name in list(tensors):
            tensors[f"bridge.{name}"] = tensors.pop(name)

    edit_tensors(specforge, rename)
    names = [*parameter_shapes(drafter.config), "transfer_codes"]
    table = {f"bridge.{n}".replace(".0.", ".{i}."): n.replace(".0.", ".{i}.") for n in names if ".1." not in n}
    monkeypatch.setattr(official, "NAMES", table)
    assert same_proposal(drafter, load_drafter(specforge, target, packed=False))


def test_a_mask_id_beyond_the_tokenizer_but_inside_the_embedding(target: Target, tmp_path: Path) -> None:
    drafter = random_drafter(target, mask_token_id=target.vocab_size - 1)
    check_mask_token(target.vocab_size - 1, target)
    save_drafter(drafter, tmp_path / "out", target=target, training={}, dtype=torch.float32)
    assert same_proposal(drafter, load_drafter(tmp_path / "out", target, packed=False))


@pytest.mark.parametrize("thinking", [False, True])
def test_the_same_template_and_mode_do_not_warn(thinking: bool, tmp_path: Path) -> None:
    target = tiny_target(chat_template=THINKING_TEMPLATE)
    save_drafter(random_drafter(target), tmp_path / "out", target=target, training={}, thinking=thinking)
    load_drafter(tmp_path / "out", target, thinking=thinking, packed=False)
    load_drafter(tmp_path / "out", target, packed=False)  # not known: nothing to say
