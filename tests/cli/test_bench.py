"""`dspine bench`: tables for people, JSON and a file for programs, and what is refused."""

from __future__ import annotations

import pytest
from tests.cli.conftest import assert_fault, parsed

from dspine.evaluate.results import read_results


@pytest.fixture
def bench(run, models, tmp_path):
    def call(*words, drafter=models.drafter):
        fixed = ("-n", 6, "--tasks", "gsm8k,arena_hard", "--count", 2, "--out", tmp_path / "out", "--waves", 1)
        return run("bench", models.target, *([drafter] if drafter else []), *fixed, *words)

    return call


def test_tables_file_and_json_say_the_same(bench, tmp_path):
    words = ("--concurrency", "1,2", "--runs", 2, "--predict", "1,4")
    told = bench(*words)
    assert told.exit_code == 0, told.stderr
    for said in ("tokens/s", "spread", "T_verify", "draft/backbone", "verify/forward", "speed-up", "drafter"):
        assert said in told.stdout
    report = parsed(bench(*words, "--json"))
    [path] = (tmp_path / "out").iterdir()
    head, lines = read_results(path)
    assert str(path) == report["file"]
    assert (head["measured_on"], lines) == (report["measured_on"], report["results"])
    assert head["measured_on"]["tasks"] == {
        name: {"source": "samples", "prompts": 2} for name in ("gsm8k", "arena_hard")
    }
    assert {"template_digest", "drafters", "versions", "digests", "waves"} <= head["measured_on"].keys()
    assert len([line for line in lines if line["kind"] == "run"]) == 2 * 2 * 2


def test_plain_decoding_alone_can_be_measured(bench):
    report = parsed(bench("--concurrency", "2", "--runs", 1, "--json", drafter=None))
    assert [line["who"] for line in report["results"]] == ["plain", "plain"]
    assert report["measured_on"]["drafters"] == {}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--tasks", "random"), 1, "random tokens says nothing"),
        (("--concurrency", "0,2"), 2, "whole numbers from 1 on"),
        (("--concurrency", "1.5"), 2, "whole numbers from 1 on"),
        (("--endpoint", "http://127.0.0.1:9/v1"), 2, "takes no drafters"),
    ],
)
def test_what_cannot_be_measured_is_refused(bench, words, code, said):
    assert_fault(bench(*words), code, said)


def test_two_drafters_of_one_name_are_refused(run, models):
    assert_fault(run("bench", models.target, models.drafter, models.drafter), 2, "two drafters have one name")


def test_a_server_that_is_not_there_is_named(bench):
    result = bench("--endpoint", "http://127.0.0.1:9/v1", drafter=None)
    assert_fault(result, 1, "127.0.0.1:9", "Is the server up?")
