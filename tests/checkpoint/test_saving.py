"""Saving: what is written, and that it is all or nothing."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.checkpoint.folders import TRAINING, proposal, random_drafter, snapshot
from tests.support.tiny_target import BOS, MASK

from dspine import __version__
from dspine.checkpoint import drafter_digest, find_drafter, load_drafter, read_config, save_drafter, saving
from dspine.checkpoint.folder import left_over, replacing
from dspine.drafter.dspine import DSpine
from dspine.durable import alone
from dspine.errors import CheckpointError
from dspine.target.model import Target


def test_config_follows_the_published_schema(own: Path, specforge: Path, target: Target) -> None:
    config = json.loads((own / "config.json").read_text())
    published: dict[str, Any] = {
        "architectures": ["DSpineDraftModel"],
        "auto_map": {"AutoModel": "dspine.DSpineDraftModel"},
        "model_type": "qwen3",
        "block_size": 4,
        "num_hidden_layers": 2,
        "num_target_layers": 6,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 20000.0,
        "rope_scaling": None,
        "max_position_embeddings": 4096,
        "layer_types": ["full_attention"] * 2,
        "sliding_window": None,
        "is_causal": True,
        "dtype": "float32",
        "bos_token_id": BOS,
        "eos_token_id": sorted(target.eos_ids),
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 4], "causal": True},
        "dspine_config": {
            "transfer_rank": 16,
            "message_size": 8,
            "top_k": 4,
            "ce_weight": 0.2,
            "alignment_weight": 0.5,
            "alignment_warmup_steps": 3,
            "replacement_layers": 1,
            "replacement_probability": 0.5,
            "replacement_hold_ratio": 1 / 6,
            "replacement_end_ratio": 1 / 3,
            "candidate_mass_threshold": 1e-4,
        },
    }
    assert {key: config[key] for key in published} == published
    ours = config["dspine_format"]
    assert ours["target"]["name"] == "tiny-qwen3"
    assert ours["target"]["head_sha256"] == target.head_digest
    assert len(ours["target"]["template_sha256"]) == 64
    assert ours["target"]["thinking"] is False
    assert ours["training"] == TRAINING
    assert ours["written_by"] == f"dspine {__version__}"
    other = json.loads((specforge / "config.json").read_text())
    assert config.keys() == other.keys()


def test_reading_the_config_reads_no_weights(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class HeadersOnly:
        """safe_open without `get_tensor`."""

        def __init__(self, *given: object) -> None:
            self._opened = safe_open(*given)
            self.keys, self.get_slice = self._opened.keys, self._opened.get_slice

        def __enter__(self) -> HeadersOnly:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("dspine.checkpoint.weights.safe_open", HeadersOnly)
    config = read_config(own)
    assert config.layout == "dspine"
    assert config.drafter.target_layer_ids == (1, 3, 4)
    assert config.training == TRAINING
    assert not config.unknown


def test_digest_depends_on_every_file(own: Path) -> None:
    first = drafter_digest(own)
    assert len(first) == 64
    (own / "README.md").write_text("a card is not the drafter")
    assert drafter_digest(own) == first
    for name in ("config.json", "model.safetensors"):
        content = (own / name).read_bytes()
        (own / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert drafter_digest(own) != first
        (own / name).write_bytes(content)


# ------------------------------------------------------------------ all or nothing


def _others(folder: Path) -> list[str]:
    """What lies beside the folder."""
    return sorted(entry.name for entry in folder.parent.iterdir() if entry != folder)


def test_a_folder_is_replaced_and_its_card_stays(own: Path, target: Target) -> None:
    (own / "README.md").write_text("card")
    (own / "state").mkdir()
    (own / "state" / "step.txt").write_text("7")
    (own / "model-00001-of-00002.safetensors").write_text("a shard of the old drafter")
    other = random_drafter(target, draft_ids=torch.arange(0, 300, 3))
    save_drafter(other, own, target=target, training={}, dtype=torch.float32)
    names = ["README.md", "config.json", "draft_vocab.safetensors", "model.safetensors", "state/step.txt"]
    assert sorted(snapshot(own)) == names
    assert (own / "README.md").read_text() == "card"
    assert torch.equal(proposal(load_drafter(own, target, packed=False)).tokens, proposal(other).tokens)
    assert _others(own) == []
    save_drafter(random_drafter(target), own, target=target, training={})
    assert not (own / "draft_vocab.safetensors").exists()


def test_a_packed_drafter_is_not_saved(own: Path, target: Target, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"packed for decoding.*\n.*packed=False"):
        save_drafter(load_drafter(own, target), tmp_path / "out", target=target, training={})
    assert not (tmp_path / "out").exists()


def test_no_space_left(own: Path, target: Target, drafter: DSpine) -> None:
    before = snapshot(own)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"could not be written.*nothing was changed\n.*Free some space"):
            save_drafter(drafter, own, target=target, training={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert snapshot(own) == before
    assert _others(own) == []


def test_a_parent_that_is_a_file(tmp_path: Path, target: Target, drafter: DSpine) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save_drafter(drafter, tmp_path / "file" / "out", target=target, training={})
    with pytest.raises(CheckpointError, match="is a file"):
        save_drafter(drafter, tmp_path / "file", target=target, training={})


@pytest.mark.parametrize("exists", [True, False])
def test_interrupt_while_writing(
    exists: bool, own: Path, target: Target, drafter: DSpine, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = own if exists else own.parent / "new"
    before = snapshot(place)

    def interrupted(tensors: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half of the weights")
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_drafter(drafter, place, target=target, training={})
    assert snapshot(place) == before
    assert place.exists() == exists
    assert _others(own) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupt_between_the_two_renames(
    error: type[BaseException], own: Path, target: Target, drafter: DSpine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(own)
    rename = Path.rename

    def fails_for_the_new(path: Path, to: Path) -> Path:
        if path.name.endswith(".partial"):
            raise error
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fails_for_the_new)
    with pytest.raises((KeyboardInterrupt, CheckpointError)):
        save_drafter(drafter, own, target=target, training={})
    assert snapshot(own) == before
    assert _others(own) == []


def test_a_kill_between_the_two_renames_can_be_mended(own: Path) -> None:
    own.rename(own.with_name(f".{own.name}.0123abcd.previous"))
    with pytest.raises(CheckpointError, match=r"saving was killed.*\n.*mv .*0123abcd\.previous"):
        find_drafter(own)


def test_the_next_save_clears_up_behind_kills(tmp_path: Path, target: Target, drafter: DSpine) -> None:
    """Killed once in the middle of writing, and once between the renames; another process is writing right now."""
    folder = tmp_path / "best[1]"
    save_drafter(drafter, folder, target=target, training={})
    (folder / "README.md").write_text("a card")
    folder.rename(folder.with_name(f".{folder.name}.0123abcd.previous"))
    names = (f".{folder.name}.0123abcd", f".{folder.name}.4567abcd", f".{folder.name}.old.0123abcd")
    cut, other, elsewhere = (folder.with_name(f"{name}.partial") for name in names)
    for begun in (cut, other, elsewhere):
        begun.mkdir()
        (begun / "model.safetensors").write_bytes(b"half")
    assert left_over(folder) is not None
    with alone(other, "a drafter in"):
        save_drafter(drafter, folder, target=target, training={})
    assert (folder / "README.md").read_text() == "a card"
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, other.name, elsewhere.name}


def test_a_link_stays_a_link(own: Path, target: Target, drafter: DSpine) -> None:
    link = own.parent / "latest"
    link.symlink_to(own)
    save_drafter(drafter, link, target=target, training={"steps": 99})
    assert link.is_symlink()
    assert read_config(own).training == {"steps": 99}


def test_the_new_folder_has_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    with replacing(tmp_path / "new", lambda _: True) as fresh:
        (fresh / "file").write_text("")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_follow_the_umask(tmp_path: Path, target: Target, drafter: DSpine, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save_drafter(drafter, tmp_path / "drafter", target=target, training=TRAINING)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "drafter").iterdir()} == {mode}


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, target: Target, drafter: DSpine) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"holds other things.*\n.*new or an empty folder"):
        save_drafter(drafter, tmp_path, target=target, training={})
    (tmp_path / "empty").mkdir()
    save_drafter(drafter, tmp_path / "empty", target=target, training={})


# ------------------------------------------------------------------ what is not saved


def test_poisoned_weights_are_not_saved(own: Path, target: Target) -> None:
    before = snapshot(own)
    broken = random_drafter(target)
    with torch.no_grad():
        broken.backbone.norm.weight[2] = float("nan")
    with pytest.raises(CheckpointError, match=r"not saved: NaN or infinity in norm\.weight"):
        save_drafter(broken, own, target=target, training={})
    assert snapshot(own) == before


@pytest.mark.parametrize("facts", [{"steps": torch.tensor(3)}, {"loss": float("nan")}])
def test_training_facts_must_be_json(facts: dict[str, Any], own: Path, target: Target, drafter: DSpine) -> None:
    before = snapshot(own)
    with pytest.raises(CheckpointError, match="training facts are not plain JSON"):
        save_drafter(drafter, own, target=target, training=facts)
    assert snapshot(own) == before


def test_only_two_number_formats(tmp_path: Path, target: Target, drafter: DSpine) -> None:
    with pytest.raises(CheckpointError, match="bfloat16 or float32"):
        save_drafter(drafter, tmp_path / "out", target=target, training={}, dtype=torch.float16)


# ------------------------------------------------------------------ finding


@pytest.mark.parametrize("name", ["no-such-drafter", "owner/name"])
def test_an_unknown_name_lists_the_shipped_ones(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no such folder\n.*smollm2-135m-dspine, nano.*hf download"):
        find_drafter(name)


def test_a_file_is_no_drafter(own: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file, not a folder"):
        find_drafter(own / "config.json")


def test_shipped_names_win_over_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dspine.checkpoint.opening.shipped", lambda name: Path("/shipped") / name)
    assert find_drafter("nano") == Path("/shipped/nano/drafter")
    assert find_drafter("smollm2-135m-dspine") == Path("/shipped/smollm2-135m-dspine")
    assert find_drafter("./nano") == Path("nano")
