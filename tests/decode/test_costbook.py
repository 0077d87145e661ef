"""Measuring, and the file that keeps what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.processor import needs_onednn
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_model, tiny_target, tiny_tokenizer

from dspine.decode import costbook
from dspine.decode.cost import Costs, Runs
from dspine.decode.costbook import KEPT, CostBook, facts_of, measure, steady, widths
from dspine.drafter import DSpine
from dspine.kernels.arithmetic import CPU
from dspine.kernels.kv import Span
from dspine.target.model import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def drafter(target: Target) -> DSpine:
    return tiny_drafter(target, block_size=6)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(costbook, "cache_root", lambda: tmp_path)
    return tmp_path / "costs"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The counts of rows that were measured, by a quick stand-in on a quiet machine."""
    asked: list[int] = []

    def quick(target: Target, drafter: DSpine, rows: int, forward: object) -> Runs:
        asked.append(rows)
        return Runs({1: [1.0 * rows] * 2, drafter.block_size: [2.0 * rows] * 2}, [0.5, 0.5])

    monkeypatch.setattr(costbook, "measure", quick)
    return asked


def test_every_size_is_measured_several_times(target: Target, drafter: DSpine) -> None:
    found = measure(target, drafter, 3)
    assert list(found.verify) == widths(3, 6) == [1, 2, 4, 6]
    assert {len(runs) for runs in found.each} == {len(found.draft)}
    assert all(seconds > 0 for runs in found.each for seconds in runs)
    assert not found.wide  # its rows all cost as much as the widest


def test_drafting_costs_what_is_shown_to_the_drafter_too(
    target: Target, drafter: DSpine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, observe = [], DSpine.observe
    monkeypatch.setattr(
        DSpine, "observe", lambda self, cache, span, *rest: spans.append(span) or observe(self, cache, span, *rest)
    )
    draft = measure(target, drafter, 3).draft
    before = spans[0].width
    assert spans[1:] == [Span(0, (before,) * 3, KEPT)] * (len(draft) + 1)


def test_where_a_forward_falls_into_pieces_both_sides_are_measured() -> None:
    assert widths(8, 8, 32) == [1, 2, 4, 33 / 8, 8]
    assert widths(6, 8, 32) == [1, 2, 4, 32 / 6, 33 / 6, 8]
    assert widths(16, 6, 32) == [1, 2, 33 / 16, 4, 65 / 16, 6]
    assert widths(32, 2, 32) == [1, 33 / 32, 2]
    assert widths(40, 2, 32) == [1, 64 / 40, 65 / 40, 2]
    assert widths(4, 8, 32) == [1, 2, 4, 8]


@needs_onednn
def test_sizes_between_whole_widths_are_measured_on_ragged_rows(
    drafter: DSpine, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = Target(tiny_model(), tiny_tokenizer(), name="packed", packed=True)
    monkeypatch.setattr(costbook, "widths", lambda *_: [1.0, 5 / 3])
    monkeypatch.setattr(costbook, "LIMIT_S", 0.0)
    spans = []
    forward = Target.forward
    monkeypatch.setattr(
        Target,
        "forward",
        lambda self, ids, cache, span, *taps: spans.append(span) or forward(self, ids, cache, span, *taps),
    )
    found = measure(packed, tiny_drafter(packed, block_size=6), 3)
    assert list(found.verify) == [1.0, 5 / 3]
    assert {span.each for span in spans} == {(1, 1, 1), (2, 2, 1), (1, 1, 6)}
    assert len(found.wide) == len(found.draft)
    spans.clear()
    assert not measure(packed, tiny_drafter(packed, block_size=6), 1).wide


@needs_onednn
def test_a_table_knows_whether_its_target_takes_ragged_rows(target: Target, counted: list[int]) -> None:
    packed = Target(tiny_model(), tiny_tokenizer(), name="packed", packed=True)
    for each in (target, packed, packed):
        book = CostBook(each, tiny_drafter(each, block_size=6), capacity=1)
        assert book.covering(1).ragged == each.ragged == (each is packed)
    assert counted == [1, 1]


def test_measuring_goes_on_until_two_runs_agree(
    target: Target, drafter: DSpine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = iter([9.0] * 5 + [5.0, 1, 1, 1, 1] + [4.0, 1, 1, 1, 1] + [3.0, 1, 1, 1, 1] + [2.0, 1, 1, 1, 1] + [2.1] * 50)
    monkeypatch.setattr(costbook, "_seconds", lambda work: next(spent))
    found = measure(target, drafter, 1)
    assert found.verify[1] == [5, 4, 3, 2, 2.1]  # neither the run that pays for set-up, nor one more than needed
    assert len(found.draft) == 5
    monkeypatch.setattr(costbook, "LIMIT_S", 0.0)
    spent = iter([9.0] * 5 + [1.0, 2.0] * 50)
    assert measure(target, drafter, 1) == Runs({1: [1], 2: [2], 4: [1], 6: [2]}, [1], [])


def test_a_target_with_hardly_any_room_is_measured_too(drafter: DSpine) -> None:
    small = tiny_target(max_position_embeddings=9)
    assert all(measure(small, tiny_drafter(small, block_size=6), 1).each)


def test_counts_of_rows_are_measured_when_they_are_asked_for(
    target: Target, drafter: DSpine, counted: list[int]
) -> None:
    book = CostBook(target, drafter, capacity=6)
    assert counted == []
    assert book.covering(5).plain(6) == 6
    for rows in (6, 4, 3):
        book.covering(rows)
    assert counted == [6]
    for rows in (2, 1, 1, 2):
        assert book.covering(rows).covers(rows)
    assert counted == [6, 2]


def test_the_next_process_reads_the_file(target: Target, drafter: DSpine, counted: list[int], folder: Path) -> None:
    first = CostBook(target, drafter, capacity=8).covering(1)
    assert [file.name for file in folder.iterdir()] == [CostBook(target, drafter, capacity=8).file.name]
    assert CostBook(target, drafter, capacity=8).covering(1) == first
    CostBook(target, drafter, capacity=8).covering(8)
    assert CostBook(target, drafter, capacity=8).covering(1) == CostBook(target, drafter, capacity=8).covering(8)
    assert counted == [1, 8]


def test_it_can_be_measured_anew(target: Target, drafter: DSpine, counted: list[int]) -> None:
    for anew in (False, True, False):
        CostBook(target, drafter, capacity=8, anew=anew).covering(1)
    assert counted == [1, 1]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"verify": {"1": {"1": -1}}, "draft": {"1": 1}}', "\x00"])
def test_a_damaged_file_is_measured_again(target: Target, drafter: DSpine, counted: list[int], content: str) -> None:
    book = CostBook(target, drafter, capacity=8)
    book.covering(1)
    book.file.write_text(content)
    CostBook(target, drafter, capacity=8).covering(1)
    CostBook(target, drafter, capacity=8).covering(1)
    assert counted == [1, 1]


def test_what_was_measured_on_a_busy_machine_is_not_kept(
    target: Target, drafter: DSpine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs({1: [9.0, 1.1, 1.2], 6: [2.0, 5.0, 4.0]}, [1.0, 1.0, 1.0])
    monkeypatch.setattr(costbook, "measure", lambda *_: runs)
    book = CostBook(target, drafter, capacity=8)
    assert book.covering(1).plain(1) == 1.1
    assert not book.file.exists()
    assert steady([9.0, 1.0, 1.1])
    assert not steady([1.0, 1.6])
    assert not steady([1.0])


def test_a_folder_that_cannot_be_written_is_no_fault(
    target: Target, drafter: DSpine, counted: list[int], folder: Path
) -> None:
    folder.write_text("a file in its place")
    assert CostBook(target, drafter, capacity=8).covering(1).plain(1) == 1


def test_other_set_ups_have_other_files(target: Target, drafter: DSpine) -> None:
    def file(target: Target, drafter: DSpine) -> Path:
        return CostBook(target, drafter, capacity=8).file

    other, double = tiny_target(seed=1), tiny_target(dtype=torch.float64)
    files = {
        file(target, drafter),
        file(other, tiny_drafter(other, block_size=6)),
        file(double, tiny_drafter(double, block_size=6)),
        file(target, tiny_drafter(target, block_size=5)),
        file(target, tiny_drafter(target, block_size=6, num_hidden_layers=3)),
        file(target, tiny_drafter(target, block_size=6, target_layer_ids=(0, 3))),
    }
    quick = tiny_drafter(target, block_size=6)
    quick.kernels = CPU
    files.add(file(target, quick))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        files.add(file(target, drafter))
    finally:
        torch.set_num_threads(threads)
    assert len(files) == 8
    assert file(target, tiny_drafter(target, block_size=6, seed=4)) in files  # other weights, the same costs
    assert facts_of(target, drafter)["head_digest"] == target.head_digest


def test_measuring_leaves_the_costs_of_a_hand_made_table_alone() -> None:
    table = Costs({1: {1: 1.0}}, {1: 1.0})
    assert table.covering(8) is table
