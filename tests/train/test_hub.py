"""Data sets as prompts: read once from a local file or folder, kept with what they were made from."""

from __future__ import annotations

import json

import pytest

from dspine.config import DatasetPromptsRecipe
from dspine.errors import ConfigError, DataError
from dspine.train.hub import build_from_dataset, dataset_prompts
from dspine.train.prompts import read_prompts


def said(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def dataset(tmp_path):
    """A folder with one file, as a hub data set has it: six rows, of which two cannot be asked and two are the same."""
    rows = [
        {"id": f"r{i}", "prompt": f"Prompt {i}", "messages": said(f"Say {i}", "No.", "Why?", "So.")} for i in range(4)
    ]
    rows += [{"id": "r0", "prompt": "Prompt 0", "messages": said("Say 0", "No.")}]
    rows += [{"id": "bad", "prompt": " ", "messages": said("", "x")}]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "set"


def asked(name, **options):
    return DatasetPromptsRecipe(builder="dataset", name=str(name), **options)


def test_a_folder_and_a_file_give_the_same_prompts(dataset):
    prompts, left_out = dataset_prompts(asked(dataset))
    assert sorted(p.id for p in prompts) == ["r0", "r1", "r2", "r3"]
    one = next(p for p in prompts if p.id == "r1")
    assert (one.source, one.messages, one.later) == ("set", ({"role": "user", "content": "Say 1"},), ("Why?",))
    assert left_out == {"id or text was there before": 1, "the user says nothing": 1}
    assert dataset_prompts(asked(dataset / "train.jsonl", source="set")) == (prompts, left_out)


def test_columns_and_counts(dataset):
    prompts, _ = dataset_prompts(asked(dataset, column="prompt", source="mine"))
    assert {(p.source, p.messages[0]["content"], p.later) for p in prompts} == {
        ("mine", f"Prompt {i}", ()) for i in range(4)
    }
    few, _ = dataset_prompts(asked(dataset, count=2))
    assert few == dataset_prompts(asked(dataset))[0][:2]
    assert {p.later for p in dataset_prompts(asked(dataset, turns=1))[0]} == {()}
    assert {p.later for p in dataset_prompts(asked(dataset, turns=2))[0]} == {("Why?",)}
    other, _ = dataset_prompts(asked(dataset, seed=5))
    assert [p.id for p in other] != [p.id for p in dataset_prompts(asked(dataset))[0]]


def test_turns_in_a_list(tmp_path):
    (tmp_path / "bench.jsonl").write_text(json.dumps({"turns": ["One?", "Two?"]}) + "\n")
    [prompt], _ = dataset_prompts(asked(tmp_path / "bench.jsonl", column="turns"))
    assert (prompt.messages[0]["content"], prompt.later) == ("One?", ("Two?",))


def test_what_is_built_stays(dataset, tmp_path, capsys):
    path = tmp_path / "run" / "prompts.jsonl"
    build_from_dataset(path, asked(dataset, count=3))
    assert "3 of" in capsys.readouterr().err
    before = path.read_bytes()
    assert read_prompts(path) == dataset_prompts(asked(dataset, count=3))[0]
    (dataset / "train.jsonl").unlink()  # it is not needed any more
    build_from_dataset(path, asked(dataset, count=3))
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="made by other settings"):
        build_from_dataset(path, asked(dataset, count=2))
    path.write_bytes(before + before)
    with pytest.raises(ConfigError, match="was changed since"):
        build_from_dataset(path, asked(dataset, count=3))
    path.with_suffix(".source.json").unlink()
    with pytest.raises(ConfigError, match=r"nothing says that build\.prompts made it"):
        build_from_dataset(path, asked(dataset, count=3))


def test_what_cannot_be_had(dataset, tmp_path):
    with pytest.raises(DataError, match=r"no column turns\nIts columns: id, prompt, messages"):
        dataset_prompts(asked(dataset, column="turns"))
    with pytest.raises(DataError, match="cannot be read"):
        dataset_prompts(asked(dataset, split="nowhere"))
    with pytest.raises(DataError, match="cannot be read"):
        dataset_prompts(asked(tmp_path / "none"))
    (tmp_path / "set.txt").write_text("x")
    with pytest.raises(DataError, match="is none of"):
        dataset_prompts(asked(tmp_path / "set.txt"))
    (dataset / "train.jsonl").write_text(json.dumps({"prompt": ""}) + "\n")
    with pytest.raises(DataError, match="no row that can be asked"):
        build_from_dataset(tmp_path / "p.jsonl", asked(dataset))
    assert not (tmp_path / "p.jsonl").exists()
