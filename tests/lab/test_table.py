"""The table says what was measured: hand-made outcomes, their order, their uncertainty, and what stands beside tau."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspine.decode.records import RoundRecord
from dspine.errors import ConfigError
from dspine.evaluate.answers import AnswerRecord
from dspine.evaluate.contest import stage_key
from dspine.evaluate.results import read_results
from dspine.evaluate.summary import Summary, summarise
from dspine.lab.comparison import ALL, Comparison, Outcome
from dspine.lab.contestants import Contestant, names_of
from dspine.lab.table import as_json, as_markdown, lines_of, save
from dspine.report.found import find
from dspine.report.sections import sections


def figures(*kept: int) -> Summary:
    """One answer a number, of two rounds that keep it and as many again."""
    answers = [
        AnswerRecord(
            id=str(number),
            task="story",
            prompt="",
            tokens=tuple(range(1 + 2 * count)),
            text="",
            finish="stop",
            rounds=(RoundRecord(7, count - 1, count),) * 2,
        )
        for number, count in enumerate(kept)
    ]
    return summarise(answers)


def outcomes(title: str, seed: int, *kept: int) -> list[Outcome]:
    entry = Contestant(title, seed, Path("drafter"), "d", 1_500_000, 600, 4.0 + seed)
    summary = {"story": figures(*kept), ALL: figures(*kept)}
    return [
        Outcome(entry, temperature, summary, compared=0 if temperature else 2, identical=0 if temperature else 2)
        for temperature in (0.0, 1.0)
    ]


def comparison(*parts: list[Outcome]) -> Comparison:
    rounds = {"draft": 0.002, "verify": 0.01, "other": 0.001}
    titles = {part[0].contestant.title for part in parts}
    timings = {stage_key(1, title): {"round": rounds} for title in titles}
    timings |= {f"ratio/1/{title}": {"median": 1.5} for title in titles}
    return Comparison(Path("lab"), [outcome for part in parts for outcome in part], timings, {"target": "nano"})


def test_the_best_stands_first_and_is_compared_with_dflash():
    lines = lines_of(comparison(outcomes("DFlash", 0, 2, 2), outcomes("DSpine", 0, 3, 3)))
    assert [line.title for line in lines] == ["DSpine", "DFlash"]
    assert lines[0].tau[0.0][ALL].mean == 3.0
    assert lines[0].against == 1.5
    assert lines[1].against == 1.0
    assert (lines[0].draft, lines[0].verify, lines[0].other, lines[0].speedup) == (2.0, 10.0, 1.0, 1.5)
    assert (lines[0].identical, lines[0].compared) == (2, 2)


def test_without_dflash_nothing_is_compared():
    [line] = lines_of(comparison(outcomes("DSpine", 0, 3, 3)))
    assert line.against is None
    assert "| - |" in as_markdown([line])


def test_one_seed_has_a_bootstrap_and_several_have_a_spread():
    [alone] = lines_of(comparison(outcomes("DSpine", 0, 2, 4)))
    assert (alone.tau[0.0][ALL].low, alone.tau[0.0][ALL].high) == (2.0, 4.0)
    assert "95 % bootstrap over prompts" in as_markdown([alone])
    [several] = lines_of(comparison(outcomes("DSpine", 0, 2, 2), outcomes("DSpine", 1, 4, 4)))
    tau = several.tau[0.0][ALL]
    assert tau.mean == 3.0
    assert tau.high - tau.mean == pytest.approx(2**0.5)
    assert several.minutes == 4.5
    assert several.seeds == (0, 1)
    assert "over seeds" in as_markdown([several])
    assert "4 of 4 greedy answers equal plain ones" in as_markdown([several])


def test_the_table_can_be_read_by_a_program():
    found = comparison(outcomes("DSpine", 0, 3))
    told = as_json(found, lines_of(found))
    assert told["measured_on"] == {"target": "nano"}
    assert told["lines"][0]["tau"][0.0]["story"]["mean"] == 3.0


def test_the_table_is_kept_for_a_report(tmp_path):
    found = replace(comparison(outcomes("DSpine", 0, 3, 3), outcomes("DFlash", 0, 2, 2)), folder=tmp_path)
    path = save(found, lines_of(found))
    head, lines = read_results(path)
    assert head["measured_on"] == {"target": "nano"}
    assert [line["title"] for line in lines] == ["DSpine", "DFlash"]
    [methods] = sections(find([path]))
    assert methods.grids[0].rows[0][:4] == ["DSpine", "3.00 (3.00-3.00)", "3.00 (3.00-3.00)", "1.50"]
    save(replace(found, outcomes=found.outcomes[:2]), lines_of(found)[:1])
    assert len(read_results(path)[1]) == 1, "a method that was left out is no part of the table"


def test_names_are_those_of_the_recipe():
    assert names_of(["dflash", "domino"], None) == ["full", "dflash", "domino"]
    assert names_of(["dflash", "domino"], ["domino", "dspine"]) == ["domino", "full"]
    with pytest.raises(ConfigError, match="eagle4"):
        names_of(["dflash"], ["eagle4"])
