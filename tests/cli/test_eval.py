"""`dspine eval`: tables for people, JSON and files for programs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import assert_fault

from dspine.evaluate.results import read_results


@pytest.fixture
def evaluate(run, models, tmp_path):
    def call(*words):
        return run("eval", models.target, models.drafter, "-n", 8, "--count", 2, "--out", tmp_path / "out", *words)

    return call


def test_tables_files_and_json_say_the_same(evaluate, models, tmp_path):
    told = evaluate("--tasks", "gsm8k,arena_hard")
    assert told.exit_code == 0, told.stderr
    for words in ("gsm8k", "samples", "2 of 2", "Model Opt", "by place", "temperature 0.0", "temperature 1.0"):
        assert words in told.stdout
    again = evaluate("--tasks", "gsm8k,arena_hard", "--json")
    assert "2 of 2" not in again.stdout
    report = json.loads(again.stdout)
    assert [each["measured_on"]["temperature"] for each in report] == [0.0, 1.0]
    greedy = report[0]
    head, results = read_results(greedy["file"])
    assert head["measured_on"] == greedy["measured_on"]
    assert head["measured_on"]["drafter_name"] == models.drafter
    assert {"template_digest", "split", "dtype", "thinking", "versions"} <= head["measured_on"].keys()
    assert [result["key"] for result in results] == ["gsm8k", "arena_hard"]
    assert results[0]["summary"] == greedy["results"][0]["summary"]
    assert results[0]["lossless"]["identical"] == 2
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 7, (
        "answers at 0 and 1, plain ones at 0, results of both, and answers token by token"
    )
    _, shown = read_results(tmp_path / "out" / Path(greedy["file"]).name.replace("acceptance", "decoded"))
    assert [line["task"] for line in shown] == ["gsm8k", "arena_hard"]
    assert [len(line["tokens"]) for line in shown] == [1 + line["kept"] for line in shown]
    assert {token["round"] for token in shown[0]["tokens"]} == set(range(shown[0]["rounds"] + 1))


def test_what_was_measured_otherwise_stays_beside_or_is_refused(evaluate, tmp_path):
    def files():
        return {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}

    once = ("--tasks", "gsm8k", "--temperature", "0", "--no-plain")
    assert evaluate(*once).exit_code == 0
    before = files()
    assert evaluate(*once, "--count", 1).exit_code == 0
    assert evaluate(*once, "--turns", 2).exit_code == 0
    after = files()
    assert all(after[name] == data for name, data in before.items())
    assert len([name for name in after if name.startswith("acceptance-")]) == 3
    assert evaluate(*once, "--kernels", "reference").exit_code == 0
    apart = {name for name in files() if "-kernels-reference" in name}
    assert len(apart) == 3, "answers by other kernels are made anew, and measured and shown apart"
    assert {name: data for name, data in files().items() if name not in apart} == after
    sampled = (*once[:2], "--temperature", "1")
    assert evaluate(*sampled).exit_code == 0
    assert_fault(evaluate(*sampled, "--seed", 4), 1, "seed: 0 → 4")

    ours = tmp_path / "ours.jsonl"
    ours.write_text('{"prompt": "Why?"}\n{"prompt": "How?"}\n')
    assert evaluate("--tasks", ours, *once[2:]).exit_code == 0
    ours.write_text('{"prompt": "When?"}\n{"prompt": "How?"}\n')
    kept = files()
    assert_fault(evaluate("--tasks", ours, *once[2:]), 1, "holds ours on other prompts")
    assert files() == kept


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--tasks", "gsm9k"), 1, "no task 'gsm9k'"),
        (("--tasks", "random"), 1, "random tokens says nothing"),
        (("--tasks", "gsm8k,gsm8k"), 2, "named twice"),
        (("--temperature", "0,x"), 2, "give numbers"),
        (("--temperature", "0,0"), 2, "there twice"),
        (("--split", "best"), 2, "report, tune, all"),
        (("--hub", "--data-dir", "d"), 2, "exclude each other"),
        (("--tasks", "gsm8k", "--data-dir", "nowhere"), 1, "nowhere/gsm8k.jsonl is missing"),
        (("--tasks", "gsm8k", "--split", "tune"), 1, "the tune split has no prompts"),
    ],
)
def test_what_cannot_be_measured_is_refused(evaluate, words, code, said):
    assert_fault(evaluate(*words), code, said)


def test_no_drafter_no_measurement(run, models):
    assert_fault(run("eval", models.target), 2, "no drafter is shipped")
