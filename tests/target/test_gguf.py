"""The prepared copy of a GGUF file: made once, whole or not at all, made again when damaged."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from tests.support.tiny_gguf import ROWS, gguf_model, write_gguf

from dspine.errors import TargetError
from dspine.target import gguf, load_target
from dspine.target.manifest import damage


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("source") / "tiny model.gguf")


@pytest.fixture(scope="module")
def made(source, tmp_path_factory) -> Path:
    """A prepared copy, for the tests that only need one to begin with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPINE_CACHE", str(tmp_path_factory.mktemp("made")))
        return gguf.prepared(source, "tiny model", lambda text: None)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DSPINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "targets"


@pytest.fixture
def copy(made, cache) -> Path:
    """The prepared copy, put into this test's own cache."""
    return Path(shutil.copytree(made, cache / made.name))


def test_loads_the_weights_and_the_tokenizer_of_the_file(source, capfd):
    target = load_target(str(source))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(target.model(ids).logits, gguf_model()(ids).logits)
    assert target.tokenizer.decode(target.tokenizer.encode("né 日本")) == "né 日本"
    assert (target.name, target.dtype, target.vocab_size) == (str(source), torch.float32, ROWS)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "preparing tiny model (once, about 1 s)\n"


def test_the_second_time_it_is_only_read(source, copy, cache):
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("*.safetensors")}
    said: list[str] = []
    assert gguf.prepared(source, "tiny model", said.append) == copy
    assert said == []
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*.safetensors")} == before
    assert [path.name for path in cache.iterdir()] == [copy.name]
    assert copy.name.startswith("tiny-model-")


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    times = file.stat()
    file.write_bytes(file.read_bytes()[:-1])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _flip(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (_cut, "bytes instead of"),
        (_flip, "model.safetensors has other contents than were written"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
    ],
    ids=["cut", "flipped", "file gone", "manifest gone", "manifest broken"],
)
def test_a_damaged_copy_is_made_again(source, copy, cache, harm, fault):
    harm(copy)
    said: list[str] = []
    assert gguf.prepared(source, "tiny model", said.append) == copy
    assert said[0].startswith("the prepared copy of tiny model is damaged (")
    assert fault in said[0]
    assert damage(copy) is None
    assert [path.name for path in cache.iterdir()] == [copy.name]


def test_a_copy_that_was_moved_is_read_through_once(copy):
    """Other modification times, same contents: accepted, and the new times are kept."""
    for file in copy.iterdir():
        os.utime(file, ns=(1, 1))
    assert damage(copy) is None
    entries = json.loads((copy / "manifest.json").read_text())["files"]
    assert {entry["mtime_ns"] for entry in entries.values()} == {1}


def test_another_file_of_the_same_name_gets_its_own_copy(source, copy, tmp_path):
    other = tmp_path / "tiny model.gguf"
    shutil.copy(source, other)
    content = bytearray(other.read_bytes())
    content[-1] ^= 1  # in the last tensor
    other.write_bytes(content)
    assert gguf.prepared(other, "tiny model", lambda text: None) != copy
    assert damage(copy) is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), r"no space left in .*targets\n.*DSPINE_CACHE"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), r"no space left in .*targets"),
        (PermissionError(errno.EACCES, "Permission denied"), r"cannot write the prepared copy to .*Permission denied"),
    ],
    ids=["full", "full, said by safetensors", "forbidden"],
)
def test_a_disk_that_cannot_be_written(source, cache, monkeypatch, error, message):
    def fail(folder: Path, made_from: dict) -> None:
        raise error

    monkeypatch.setattr(gguf, "write_manifest", fail)
    with pytest.raises(TargetError, match=message):
        gguf.prepared(source, "tiny model", lambda text: None)
    assert list(cache.iterdir()) == []


def test_an_interrupt_leaves_nothing(source, cache, monkeypatch):
    def interrupt(folder: Path, made_from: dict) -> None:
        assert (folder / "model.safetensors").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "write_manifest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gguf.prepared(source, "tiny model", lambda text: None)
    assert list(cache.iterdir()) == []


def test_an_interrupt_keeps_the_damaged_copy_for_another_try(source, copy, cache, monkeypatch):
    _cut(copy)
    monkeypatch.setattr(gguf, "write_manifest", lambda folder, made_from: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        gguf.prepared(source, "tiny model", lambda text: None)
    assert [path.name for path in cache.iterdir()] == [copy.name]


def test_what_a_killed_run_left_behind_is_swept_later(source, copy, cache):
    (copy / "manifest.json").unlink()
    old, young = cache / f".{copy.name}.old", cache / f".{copy.name}.young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (1, 1))
    gguf.prepared(source, "tiny model", lambda text: None)
    assert not old.exists()
    assert young.exists()  # perhaps another process is writing there


def test_whoever_comes_second_takes_what_is_there(copy, made, tmp_path):
    """The race at its last step: an intact copy is not replaced by another one."""
    aside = Path(shutil.copytree(made, copy.parent / "aside"))
    before = (copy / "model.safetensors").stat().st_ino
    gguf._put(aside, copy)
    assert (copy / "model.safetensors").stat().st_ino == before


def test_whoever_is_overtaken_at_the_rename_takes_what_came(made, cache, monkeypatch):
    cache.mkdir(parents=True)
    folder, aside = cache / made.name, Path(shutil.copytree(made, cache / "aside"))

    def overtaken(source: Path, target: Path) -> None:
        shutil.copytree(made, target)
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(gguf.os, "replace", overtaken)
    gguf._put(aside, folder)
    assert damage(folder) is None


def _prepare(source: Path, ready, results) -> None:
    torch.set_num_threads(1)
    ready.wait()
    results.put(str(gguf.prepared(source, "tiny model", lambda text: None)))


def test_two_processes_at_once(source, cache):
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_prepare, args=(source, ready, results)) for _ in range(2)]
    for process in processes:
        process.start()
    folders = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
        assert process.exitcode == 0
    (folder,) = folders
    assert damage(Path(folder)) is None
    assert [path.name for path in cache.iterdir()] == [Path(folder).name]


def test_a_file_that_is_no_gguf(tmp_path, cache):
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF and then nothing")
    with pytest.raises(TargetError, match=r"broken.gguf cannot be read as a GGUF language model"):
        load_target(str(file))
    assert list(cache.iterdir()) == []
