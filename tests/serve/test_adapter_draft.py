"""Where the drafter that a launch line names lies: a folder, or a hub id."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from dspine.errors import CheckpointError
from dspine.serve.adapter import draft
from dspine.target.builtin import shipped


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped("nano") / "drafter", tmp_path / "drafter"))


@pytest.mark.parametrize("name", ["no/such/folder", "./nowhere", "nowhere"])
def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(name):
    with pytest.raises(CheckpointError, match="no such folder"):
        draft.drafter_folder(name, None)
    assert not draft.is_dspine(name, None)


def test_a_hub_id_is_downloaded_without_what_is_not_needed(folder, monkeypatch):
    asked = {}

    def download(name, **given):
        asked.update(name=name, **given)
        return str(folder)

    monkeypatch.setattr(draft, "snapshot_download", download)
    assert draft.drafter_folder("somebody/a-drafter", "main") == folder
    assert asked == {"name": "somebody/a-drafter", "revision": "main", "allow_patterns": ["*.json", "*.safetensors"]}


def test_a_hub_that_does_not_answer_is_told(monkeypatch):
    def fail(*args, **kwargs):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(draft, "snapshot_download", fail)
    monkeypatch.setattr(draft, "hf_hub_download", fail)
    with pytest.raises(CheckpointError, match=r"the hub did not give it \(offline\)"):
        draft.drafter_folder("somebody/a-drafter", None)
    assert not draft.is_dspine("somebody/a-drafter", None)
