"""The feature store: equal to the batch in memory, resumable, and unwilling to be something else than it says."""

from __future__ import annotations

import errno
import json
import os
from types import SimpleNamespace

import pytest
import torch
from tests.support.tiny_target import tiny_target

from dspine import durable
from dspine.durable import alone
from dspine.errors import DataError, TargetError
from dspine.train import features, shards
from dspine.train.features import FeatureStore, online_batch, store_settings, write_features
from dspine.train.responses import ResponseRow

TAPS = (1, 4)


def row(name, prompt, answer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (prompt + answer,), generator=generator).tolist()
    return ResponseRow(name, "a", [], ids[:prompt], ids[prompt:], "length")


ROWS = [row(f"a/{i}", 3 + i % 4, 5 + 3 * (i % 5), i) for i in range(10)]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_SEQUENCES", 3)


def make(target, folder, rows=ROWS, taps=TAPS, dtype="float32", **options):
    return write_features(target, rows, taps, folder, dtype=dtype, progress=False, **options)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_store_gives_the_batch_that_the_target_gives(target, tmp_path):
    store = make(target, tmp_path / "s")
    assert sorted(content(tmp_path / "s")) == ["index.json", *(f"shard-0000{i}.safetensors" for i in range(4))]
    assert sorted(store.sample_ids) == sorted(r.id for r in ROWS)
    chosen = [ROWS[i] for i in (7, 0, 4, 9)]  # of several shards, in an order of its own
    stored, online = store.load([r.id for r in chosen]), online_batch(target, chosen, TAPS)
    assert stored.sample_ids == online.sample_ids
    for name in ("ids", "loss_mask", "lengths", "features", "hidden", "lse"):
        mine, theirs = getattr(stored, name), getattr(online, name)
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-5, msg=name)
    assert store.lengths == {r.id: len(r.prompt_ids) + len(r.response_ids) for r in ROWS}
    stored.features.add_(1)  # a batch is the caller's own, not a view of the file
    assert not torch.equal(store.load([r.id for r in chosen]).features, stored.features)


def test_bfloat16_halves_the_features_and_keeps_the_teacher_exact(target, tmp_path):
    whole, half = make(target, tmp_path / "w"), make(target, tmp_path / "h", dtype="bfloat16")
    names = [r.id for r in ROWS[:4]]
    a, b = whole.load(names), half.load(names)
    assert torch.equal(a.features.bfloat16().float(), b.features)
    assert torch.equal(a.hidden, b.hidden)
    assert torch.equal(a.lse, b.lse)


def test_a_store_of_a_bfloat16_target(tmp_path):
    target = tiny_target(dtype=torch.bfloat16)
    store = make(target, tmp_path / "s", dtype="bfloat16")
    names = [r.id for r in ROWS[:3]]
    assert store.settings.hidden_dtype == "bfloat16"
    assert torch.equal(store.load(names).hidden, make(target, tmp_path / "w").load(names).hidden)


def test_what_is_complete_is_not_written_again(target, tmp_path, monkeypatch):
    make(target, tmp_path / "s")
    monkeypatch.setattr(features, "encode", None)
    make(target, tmp_path / "s")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("number", [0, 2])
def test_a_killed_run_goes_on_at_the_next_shard(target, tmp_path, monkeypatch, number, error):
    make(target, tmp_path / "whole")
    encode, runs = features.encode, []

    def failing(target, sequences, *rest):
        runs.append([s.id for s in sequences])
        for i, encoded in enumerate(encode(target, sequences, *rest)):
            if len(runs) == number + 1 and i == 1:
                raise error
            yield encoded

    monkeypatch.setattr(features, "encode", failing)
    with pytest.raises(error):
        make(target, tmp_path / "s")
    with pytest.raises(DataError, match=f"{number} of 4 shards" if number else "cannot read"):
        FeatureStore.open(tmp_path / "s")
    (tmp_path / "s" / f"shard-0000{number}.safetensors").write_bytes(b"half")  # renamed, not yet in the index
    runs[:], done = [[], [], [], [], []], content(tmp_path / "s")
    make(target, tmp_path / "s")
    assert len(runs) == 5 + 4 - number
    after = content(tmp_path / "s")
    assert after == content(tmp_path / "whole")
    assert all(after[f"shard-0000{i}.safetensors"] == done[f"shard-0000{i}.safetensors"] for i in range(number))


def test_a_shard_that_is_cut_or_missing_is_named_and_written_anew(target, tmp_path, monkeypatch):
    folder = tmp_path / "s"
    make(target, folder)
    before = content(folder)
    shard = folder / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    for attempt in (lambda: FeatureStore.open(folder), lambda: make(target, folder)):
        with pytest.raises(DataError, match=r"shard-00001\.safetensors is damaged: .*\nRemove the file"):
            attempt()
    shard.unlink()
    with pytest.raises(DataError, match=r"lacks its shard shard-00001\.safetensors\nRun the command"):
        FeatureStore.open(folder)
    runs, encode = [], features.encode
    monkeypatch.setattr(features, "encode", lambda *given: (runs.append(1), encode(*given))[1])
    make(target, folder)
    assert len(runs) == 1
    assert content(folder) == before


def test_a_shard_whose_content_was_altered_is_named(target, tmp_path):
    store = make(target, tmp_path / "s")
    shard = tmp_path / "s" / "shard-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    good, bad = index["shards"][0]["samples"][0]["id"], index["shards"][2]["samples"][0]["id"]
    store = FeatureStore.open(tmp_path / "s")
    store.load([good])
    with pytest.raises(DataError, match=r"shard-00002\.safetensors is damaged: its sha256.*\nRemove the file"):
        store.load([good, bad])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": tiny_target(seed=1)}, "head_digest: "),
        ({"target": tiny_target(dtype=torch.bfloat16)}, "hidden_dtype: float32 → bfloat16"),
        ({"taps": (4, 1)}, r"taps: \[1, 4\] → \[4, 1\]"),
        ({"rows": ROWS[:-1]}, "responses: "),
        ({"dtype": "bfloat16"}, "; dtype: |: dtype: float32 → bfloat16"),
        ({"max_length": 12}, "max_length: None → 12"),
    ],
)
def test_a_store_of_something_else_is_refused_by_name(target, tmp_path, change, said):
    make(target, tmp_path / "s")
    before = content(tmp_path / "s")
    arguments = {"target": target, "folder": tmp_path / "s"} | change
    with pytest.raises(DataError, match=f"made from something else.*({said})") as caught:
        make(**arguments)
    assert content(tmp_path / "s") == before
    del arguments["folder"]
    settings = store_settings(**{"rows": ROWS, "taps": TAPS, "dtype": "float32"} | arguments)
    with pytest.raises(DataError) as again:
        FeatureStore.open(tmp_path / "s").require(settings)
    assert str(again.value) == str(caught.value)


def test_the_size_is_known_before_and_bounded(target, tmp_path, capsys):
    folder = tmp_path / "s"
    with pytest.raises(
        DataError, match=r"would take \d+ bytes .*bound of 0\.00 GB\n.*max_gigabytes to 0\.01\."
    ) as caught:
        make(target, folder, max_bytes=5000)
    assert content(folder) == {}
    named = int(str(caught.value).split("would take ")[1].split()[0])
    write_features(target, ROWS, TAPS, folder, dtype="float32", max_bytes=named)
    said = capsys.readouterr()
    assert said.out == ""
    tokens = sum(len(r.prompt_ids) + len(r.response_ids) for r in ROWS)
    assert f"Features of 10 sequences, {tokens} tokens: 0.00 GB (float32) in {folder}" in said.err
    assert f"features, tokens {tokens}/{tokens}" in said.err
    written = sum(path.stat().st_size for path in folder.glob("shard*"))
    assert named < written < named + 4 * 600  # the shards' headers


def test_a_disk_that_is_too_small_is_known_before(target, tmp_path, monkeypatch):
    monkeypatch.setattr(features.shutil, "disk_usage", lambda path: SimpleNamespace(free=5000))
    with pytest.raises(DataError, match=r"needs 0\.00 GB more, the disk has"):
        make(target, tmp_path / "s")
    assert content(tmp_path / "s") == {}


def test_a_disk_that_fills_up_leaves_whole_shards(target, tmp_path, monkeypatch):
    calls, fsync = [], os.fsync

    def full(handle):
        calls.append(1)
        if len(calls) == 3:  # shard 0, index, shard 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(DataError, match=r"no space left on the disk while writing .*shard-00001\.safetensors\nFree"):
        make(target, tmp_path / "s")
    assert sorted(content(tmp_path / "s")) == ["index.json", "shard-00000.safetensors"]
    assert len(make(target, tmp_path / "s").sample_ids) == 10


def test_a_sample_that_is_not_finite_is_skipped_and_named(tmp_path, capsys):
    target = tiny_target()
    with torch.no_grad():
        target.embedding.weight[300] = torch.nan
    bad = [ResponseRow(f"bad/{i}", "a", [], [300, 4], [5, 6], "length") for i in range(4)]  # the whole first shard
    late = row("late", 40, 3)
    store = write_features(target, [*ROWS, *bad, late], TAPS, tmp_path / "s", max_length=30)
    assert sorted(store.skipped) == ["bad/0", "bad/1", "bad/2", "bad/3", "late"]
    assert sorted(store.sample_ids) == sorted(r.id for r in ROWS)
    assert store.load(store.sample_ids).features.isfinite().all()
    with pytest.raises(DataError, match="no sample 'bad/2': it was skipped"):
        store.load(["bad/2"])
    said = capsys.readouterr().err
    assert "Sequences skipped: 4 (a number is not finite): bad/0, bad/1, bad/2, bad/3" in said
    assert "Sequences skipped: 1 (nothing to train on): late" in said


def test_a_shard_is_bounded_in_bytes_too(target, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    store = make(target, tmp_path / "s")
    assert len(list((tmp_path / "s").glob("shard*"))) == len(store.sample_ids) == 10


def test_a_store_has_one_writer(target, tmp_path):
    (tmp_path / "s").mkdir()
    with alone(tmp_path / "s", "the store"), pytest.raises(DataError, match="another process"):
        make(target, tmp_path / "s")
    make(target, tmp_path / "s")


def test_a_complete_store_is_read_by_several_processes_at_once(target, tmp_path):
    store = make(target, tmp_path / "s")
    with alone(tmp_path / "s", "the store"):
        assert make(target, tmp_path / "s").sample_ids == store.sample_ids
        with pytest.raises(DataError, match="more than the bound"):  # which is the recipe's, whoever wrote it
            make(target, tmp_path / "s", max_bytes=1)


def test_what_is_no_store(target, tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*index\.json"):
        FeatureStore.open(tmp_path)
    make(target, tmp_path / "s")
    index = tmp_path / "s" / "index.json"
    other = index.read_text().replace("dspine-features-1", "dspine-features-9")
    for damage, said in (("{", ""), ("[]", ""), ('{"format": "dspine-features-1"}', ""), (other, "its format is")):
        index.write_text(damage)
        with pytest.raises(DataError, match=rf"index\.json cannot be used: .*{said}"):
            FeatureStore.open(tmp_path / "s")


def test_arguments_that_cannot_be(target, tmp_path):
    with pytest.raises(DataError, match="cannot be stored as 'int8'"):
        make(target, tmp_path / "s", dtype="int8")
    with pytest.raises(DataError, match="none of the 10 responses has a token to train on within max_length 2"):
        make(target, tmp_path / "s", max_length=2)
    with pytest.raises(TargetError, match="5"):
        make(target, tmp_path / "s", taps=(1, 5))
    with pytest.raises(DataError, match="no sample 'b'"):
        make(target, tmp_path / "t").load(["b"])
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        make(target, tmp_path / "file")
