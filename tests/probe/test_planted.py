"""Each probe finds a truth that was planted in the drafter: where it reads, what it needs, and where that enters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.planted import CYCLE, NEUTRAL, WIDTH, follower, head, keeps, planted, subject

from dspine.errors import DataError
from dspine.evaluate.results import PROBE, ResultFile, read_results
from dspine.probe import predecessor, reader, timing

AT = 1  # the second of three layers knows


def measured(path: Path, measure, *given) -> dict[str, dict]:
    """The lines of a probe's file by key, read again from the disk."""
    measure(*given, ResultFile(path, PROBE, {"probe": path.stem}))
    _, lines = read_results(path)
    return {line["key"]: line for line in lines}


def test_the_reader_finds_the_layer_where_the_token_enters(tmp_path: Path):
    """The anchor, turned about, enters at the second layer: no head reads it, a reader does, there and behind."""
    turn, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3)))
    drafter = planted(AT, turn @ keeps(*range(CYCLE)), context=False)
    answers = [[token, *[follower(token)] * 7] for token in range(0, 30, 5) for _ in range(10)]
    fit = reader.Fit(rank=16, steps=150, rows=64)
    lines = measured(tmp_path / "reader", reader.measure, subject(drafter, answers), head(), fit)
    accuracy = {key: [group["accuracy"] for group in line["groups"]] for key, line in lines.items()}
    assert max(accuracy["layer/1"]) < 0.4, "one of six by chance"
    assert min(accuracy["layer/2"]) == min(accuracy["layer/3"]) == 1.0
    assert max(accuracy["drafter"]) < 0.4
    assert [(group["from"], group["to"]) for group in lines["layer/2"]["groups"]] == [(1, 4), (5, 7)]
    path = tmp_path / "reader"  # stopped behind the last layer, before the drafter's own line
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"drafter"' not in line))
    assert measured(path, reader.measure, subject(drafter, answers), head(), fit) == lines


def test_a_reader_needs_answers_to_be_judged_on(tmp_path: Path):
    drafter = planted(AT, keeps(1), context=False)
    with pytest.raises(DataError, match="needs 5"):
        measured(tmp_path / "reader", reader.measure, subject(drafter, [[1] * 8]), head(), reader.Fit())
    with pytest.raises(DataError, match="no answer is longer"):
        measured(tmp_path / "reader", reader.measure, subject(drafter, [[1] * 7]), head(), reader.Fit())


def test_timing_finds_the_layer_that_reads_the_prefix(tmp_path: Path):
    """The second layer alone reads the prefix, whose token says all that follows."""
    drafter = planted(AT, keeps(*range(18)), context=True)
    answers = [[NEUTRAL, token, token, NEUTRAL, *[follower(token)] * 4] for token in (3, 5, 9)]
    lines = measured(tmp_path / "timing", timing.measure, subject(drafter, answers))
    correct = {line["schedule"]: line["correct"] for line in lines.values() if line["kind"] == "schedule"}
    assert correct == {"none": 0.0, "2": 4.0, "2+3": 4.0, "3": 0.0, "all": 4.0}
    assert lines["schedule/none"]["differing"] == lines["schedule/none"]["blocks"] == 3


def test_the_predecessor_is_found_to_be_all_and_to_enter_at_its_layer(tmp_path: Path):
    """Every token follows from the one before it, which the second layer attends to; history says nothing."""
    drafter = planted(AT, keeps(*range(CYCLE)), context=False)
    answers = [[(begin + step) % CYCLE for step in range(20)] for begin in (0, 7, 30)]
    lines = measured(tmp_path / "predecessor", predecessor.measure, subject(drafter, answers))
    for line in lines.values():
        if line["kind"] == "content":
            assert line["accuracy"] == (line["predecessor"] == "correct"), line
        elif line["kind"] == "entry":
            assert line["accuracy"] == (2 in line["layers"]), line
    assert {line["place"] for line in lines.values() if line["kind"] == "content"} == {3, 4, 6}
    assert lines["content/4/correct/correct"]["blocks"] == 12


def test_a_probe_goes_on_where_it_stopped(tmp_path: Path):
    drafter = planted(AT, keeps(*range(CYCLE)), context=False)
    answers = [[(begin + step) % CYCLE for step in range(20)] for begin in (0, 7, 30)]
    whole = measured(tmp_path / "whole", predecessor.measure, subject(drafter, answers))
    asked = subject(drafter, answers)
    calls = []

    def failing(ids):
        calls.append(ids)
        if len(calls) == 6:  # in the second answer
            raise KeyboardInterrupt
        return asked.features(ids)

    broken = type(asked)(drafter, failing, asked.sequences, asked.blocks)
    file = tmp_path / "whole2"
    with pytest.raises(KeyboardInterrupt):
        measured(file, predecessor.measure, broken)
    before = len(read_results(file)[1])
    assert before >= 1
    again = subject(drafter, answers)
    seen = []
    counting = type(again)(drafter, lambda ids: seen.append(ids) or again.features(ids), again.sequences, again.blocks)
    resumed = measured(file, predecessor.measure, counting)
    assert resumed == whole
    assert sum(len(ids) == 1 and len(ids[0]) == 25 for ids in seen) == 3 - before


def test_places_and_schedules_are_the_papers_at_its_sizes():
    assert timing.new_anchor(15) == 7
    assert predecessor.successors(15) == [4, 8, 12]
    assert reader.groups(15) == [(1, 4), (5, 8), (9, 15)]
    assert timing.schedules(5)["2+3+4+5"] == (2, 3, 4, 5)
    assert {"2+5", "3+5", "4+5", "5"} <= timing.schedules(5).keys()
    assert {"2+5", "4+5"} <= predecessor.entries(5).keys()
