"""What is found in folders, what is passed over, and what is put beside what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.results import acceptance, everything, probe, throughput

from dspine.errors import DataError
from dspine.evaluate.results import PROBE, ResultFile
from dspine.report.found import find
from dspine.report.pictures import draw
from dspine.report.sections import sections


def test_a_folder_is_searched_and_what_is_no_result_is_passed_over(tmp_path: Path):
    everything(tmp_path / "deep" / "er")
    (tmp_path / "answers.jsonl").write_text('{"format": "dspine-answers/2", "settings": {}}\n')
    (tmp_path / "broken.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "features").mkdir()
    acceptance(tmp_path / "features", "hidden", 2)
    found = find([tmp_path, tmp_path / "deep"])
    assert len(found) == len({result.path for result in found}) == 10
    assert "hidden" not in str([result.head for result in found])


def test_a_named_file_must_be_a_result(tmp_path: Path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="holds no results"):
        find([other])
    with pytest.raises(DataError, match="missing"):
        find([tmp_path / "nowhere"])
    with pytest.raises(DataError, match="no results in"):
        find([tmp_path])
    (tmp_path / "ablation.json").write_text(json.dumps({"lines": []}))
    with pytest.raises(DataError, match="no table of an ablation"):
        find([tmp_path])


def test_only_what_was_measured_alike_stands_together(tmp_path: Path):
    acceptance(tmp_path, "ours", 3)
    acceptance(tmp_path, "theirs", 2)
    acceptance(tmp_path, "ours", 2, temperature=1.0)
    acceptance(tmp_path, "half", 2, dtype="bfloat16")
    shown = sections(find([tmp_path]))
    drafters = sorted(sorted({row[1] for row in section.grids[0].rows}) for section in shown)
    assert drafters == [["half"], ["ours"], ["ours", "theirs"]]


def test_one_level_of_concurrency_gives_bars_and_no_stages_none(tmp_path: Path):
    throughput(tmp_path, levels=(1,), stages=False)
    pictures = draw([tmp_path], tmp_path / "pictures")
    assert [path.name for path in pictures] == ["throughput-0.png", "speedup-0.png"]


def test_a_probe_that_was_stopped_has_no_section_yet(tmp_path: Path):
    path = probe(tmp_path, "timing")
    ResultFile(tmp_path / "half.jsonl", PROBE, {"probe": "timing"}).add([{"key": "sequence/0", "kind": "sequence"}])
    assert len(sections(find([tmp_path]))) == 1
    assert draw([path], tmp_path / "p")[0].name == "timing-0.png"
