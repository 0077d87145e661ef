"""Files of results describe themselves, and results of different heads are never mixed."""

from __future__ import annotations

import pytest

from dspine.errors import DataError
from dspine.evaluate.results import ACCEPTANCE, ResultFile, digest_of, file_name, read_results


def test_results_of_one_head_are_merged_and_of_another_refused(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    on = {"t": 0, "split": "report", "versions": {"torch": "1"}}
    ResultFile(path, ACCEPTANCE, on).add([{"key": "a", "tau": 1.0}, {"key": "b", "tau": float("nan")}])
    file = ResultFile(path, ACCEPTANCE, on)
    file.add([{"key": "a", "tau": 2.0, "margins": (float("inf"),)}])
    head, results = read_results(path)
    assert head == {"format": ACCEPTANCE, "measured_on": on}
    assert results == [{"key": "a", "tau": 2.0, "margins": ["inf"]}, {"key": "b", "tau": None}]
    assert file.lines == {line["key"]: line for line in results}
    with pytest.raises(DataError, match=r"something else: split: 'report' → 'tune'; turns: None → 2") as caught:
        ResultFile(path, ACCEPTANCE, on | {"split": "tune", "turns": 2})
    assert "another folder" in str(caught.value)
    assert read_results(path) == (head, results)


def test_every_head_has_a_file_of_its_own(tmp_path):
    for turns in (1, 2, 1):
        ResultFile.beside(tmp_path, "acceptance-x", ACCEPTANCE, {"turns": turns}).add([{"key": f"a{turns}"}])
    assert sorted(read_results(path)[1][0]["key"] for path in tmp_path.iterdir()) == ["a1", "a2"]


def test_another_kind_of_file_is_left_alone(tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(DataError, match="not a file of results"):
        ResultFile(path, ACCEPTANCE, {})
    assert path.read_text() == '{"prompt": "a"}\n'


def test_a_head_has_one_name():
    assert digest_of({"a": 1, "b": (1.0, None)}) == digest_of({"b": [1.0, None], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})


def test_names_of_files_hold_no_paths():
    assert file_name("a/b:c d=0.5") == "a-b-c-d-0.5"
