"""Cost tables: between, before and behind what was measured; noise; files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dspine.decode.cost import Costs, Runs, interpolated, non_decreasing

TABLE = Costs({1: {1: 10.0, 2: 12.0, 4: 20.0}, 4: {1: 16.0, 4: 40.0}}, {1: 3.0, 4: 5.0})


def test_measured_sizes_are_found_and_others_lie_between() -> None:
    assert TABLE.plain(1) == 10
    assert TABLE.drafted(1, 1) == 3 + 12
    assert TABLE.drafted(1, 2) == 3 + 16
    assert TABLE.drafted(1, 3) == 3 + 20
    assert TABLE.drafted(1, 5) == 3 + 28  # behind the last one, on the same line


def test_a_count_of_rows_is_read_off_the_next_larger_at_the_same_number_of_tokens() -> None:
    assert TABLE.plain(2) == 16  # 2 tokens: fewer than the 4 of four rows with one each
    assert TABLE.drafted(2, 4) == 5 + 28  # 10 tokens lie halfway between 4 and 16
    assert TABLE.drafted(8, 1) == 5 + 40  # more rows than were measured: 16 tokens of the largest count
    assert TABLE.plain(16) == 40


def test_rows_of_different_widths_cost_as_the_widest_or_what_their_tokens_cost() -> None:
    assert TABLE.drafted_rows([3, 0, 0, 0]) == TABLE.drafted(4, 3) == 5 + 40
    ragged = replace(TABLE, ragged=True)
    assert ragged.drafted_rows([3, 0, 0, 0]) == 5 + 16 + 24 * 3 / 12  # 7 tokens
    assert ragged.drafted_rows([3, 3, 3, 3]) == ragged.drafted(4, 3) == 5 + 40
    assert ragged.extended(8, Runs({1: [1.0]}, [1.0])).ragged


def test_rows_that_differ_cost_what_attention_does_for_them() -> None:
    table, token = replace(TABLE, ragged=True, apart={4: 3.2}), 2.0  # more tokens of four rows, each
    assert table.undrafted_rows([15, 0, 0, 0]) == pytest.approx(16 + 15 * token + 3.2)  # taken apart
    assert table.undrafted_rows([15, 0, 0, 14]) == pytest.approx(16 + 29 * token + 31 * 3.2 / 32)  # filled up
    assert table.undrafted_rows([0, 1, 0, 0]) == pytest.approx(16 + token + 3 * 3.2 / 32)
    assert table.undrafted_rows([2, 15, 0, 2]) == pytest.approx(16 + 19 * token + 3.2 + 2 * 3.2 / 32)  # both
    assert table.undrafted_rows([3, 3, 3, 3]) == 40
    assert table.undrafted_rows([3, 0, 0]) == pytest.approx(16 + 2 * token + 6 * 3.2 / 32)  # read off four rows
    assert table.drafted_rows([1, 0, 0, 0]) == pytest.approx(5 + 16 + token + 3 * 3.2 / 32)


def test_what_a_wide_row_costs_in_addition_is_what_its_tokens_alone_do_not() -> None:
    runs = Runs({1: [16.0], 4: [40.0]}, [5.0], wide=[99.0, 24.5])  # 7 tokens cost 22
    assert Costs(ragged=True).extended(4, runs).apart == {4: 2.5}
    assert Costs(ragged=True).extended(4, replace(runs, wide=[21.0])).apart == {4: 0.0}
    assert runs.each == [[16.0], [40.0], [5.0], [99.0, 24.5]]


def test_what_a_table_covers() -> None:
    assert [rows for rows in range(1, 10) if TABLE.covers(rows)] == [1, 2, 3, 4]
    assert not Costs({8: {1: 1.0}}, {8: 1.0}).covers(3)
    assert not Costs().covers(1)


def test_the_quickest_of_several_runs_counts() -> None:
    table = TABLE.extended(2, Runs({1: [1.1, 9.0, 1.0], 3: [20.0, 2.2, 2.0]}, [0.5, 0.7, 30.0]))
    assert (table.plain(2), table.drafted(2, 2)) == (1.0, 0.5 + 2.0)
    assert table.plain(1) == 10
    assert TABLE.plain(2) == 16  # the old table stays as it was


def test_a_longer_block_never_costs_less() -> None:
    table = Costs().extended(1, Runs({1: [5.0], 2: [9.0], 4: [7.0], 8: [10.0]}, [1.0]))
    assert [table.drafted(1, n) - 1 for n in (0, 1, 2, 3, 7)] == [5, 8, 8, 8, 10]
    assert non_decreasing([3.0, 2.0, 1.0, 4.0]) == [2, 2, 2, 4]
    assert non_decreasing([1.0, 2.0, 2.0]) == [1, 2, 2]


def test_one_point_is_flat() -> None:
    assert [interpolated([4], [2.0], at) for at in (1, 4, 9)] == [2, 2, 2]


def test_a_table_survives_a_file() -> None:
    for table in (TABLE, replace(TABLE, apart={4: 0.0}), replace(TABLE, apart={1: 2.0, 4: 0.5})):
        assert Costs.from_numbers(json.loads(json.dumps(table.numbers()))) == table


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"verify": {"1": {"1": 1.0}}},
        {"verify": {"1": {"1": 1.0}}, "draft": {"1": 1.0}},
        {"verify": {"1": {"1": 1.0}}, "draft": {"2": 1.0}, "apart": {}},
        {"verify": {"1": {"2": 1.0}}, "draft": {"1": 1.0}, "apart": {}},
        {"verify": {"1": {"1": 0.0}}, "draft": {"1": 1.0}, "apart": {}},
        {"verify": {"1": {"1": float("nan")}}, "draft": {"1": 1.0}, "apart": {}},
        {"verify": {"one": {"1": 1.0}}, "draft": {"one": 1.0}, "apart": {}},
        {"verify": [1], "draft": {"1": 1.0}, "apart": {}},
        {"verify": {"1": {"1": 1.0}}, "draft": {"1": 1.0}, "apart": {"2": 1.0}},
        {"verify": {"1": {"1": 1.0}}, "draft": {"1": 1.0}, "apart": {"1": -1.0}},
    ],
)
def test_what_is_no_table_is_refused(found: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        Costs.from_numbers(found)
