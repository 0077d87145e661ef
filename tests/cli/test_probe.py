"""`dspine probe` and `dspine report`: from a target and a drafter to tables, files, pictures and the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import assert_fault, parsed

from dspine.evaluate.results import read_results


@pytest.fixture
def probe(run, models, tmp_path):
    def call(what, *words):
        paths = (models.target, models.drafter, "--out", tmp_path / "out", "--count", 1, "-n", 12, "--blocks", 2)
        return run("probe", what, *paths, *words)

    return call


@pytest.mark.parametrize(
    ("what", "words", "said", "kinds"),
    [
        ("reader", ("--steps", 4, "--rank", 2), "the drafter's own head", {"layer", "drafter"}),
        ("timing", (), "layers with the correct prefix", {"schedule"}),
        ("predecessor", (), "correct enters at", {"content", "entry"}),
        ("injection", (), "by injection alone", {"layer", "influence"}),
    ],
)
def test_a_probe_fills_a_file_that_describes_itself(probe, run, models, tmp_path, what, words, said, kinds):
    told = probe(what, *words, "--no-figures")
    assert told.exit_code == 0, told.stderr
    assert said in " ".join(told.stdout.split())
    again = parsed(probe(what, *words, "--json"))
    head, lines = read_results(again["file"])
    assert head["measured_on"] == again["measured_on"]
    assert head["measured_on"]["kind"] == "dspine"
    assert {"drafter", "head_digest", "tasks", "blocks", "versions"} <= head["measured_on"].keys()
    assert again["results"] == [line for line in lines if line["kind"] != "sequence"]
    assert {line["kind"] for line in again["results"]} == kinds
    drawn = list(Path(again["file"]).with_suffix("").glob("*.png"))
    assert drawn
    page = parsed(run("report", tmp_path / "out", "--out", tmp_path / "page", "--json"))
    assert Path(page["page"]).read_text().count("<img") == len(page["figures"]) == len(drawn)


def test_what_a_probe_has_no_use_for_is_refused(probe, run, models, tmp_path):
    assert_fault(probe("timing", "--rank", 4), 2, "--rank and --steps are a reader's")
    assert_fault(run("probe", "timing", models.target), 2, "no drafter is shipped")
    assert_fault(run("report", tmp_path), 1, "no results in")
