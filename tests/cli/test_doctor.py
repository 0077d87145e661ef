"""`dspine doctor`: the facts of a pair, and a verdict."""

from __future__ import annotations

from tests.cli.conftest import assert_fault, parsed


def test_a_report_and_its_json(run, models, tmp_path):
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"prompt": "Say one"}\n{"prompt": "Say two"}\n')
    words = ("doctor", models.target, models.drafter, "--prompts", asked, "-n", 12)
    report = run(*words)
    assert report.exit_code == 0, report.stderr
    for said in ("taps                1, 3 of 6 layers", "mask token", "codes               320 x 16", "verdict: "):
        assert said in report.stdout
    found = parsed(run(*words, "--json"))
    assert found["prompts"] == 2
    assert found["pair"]["template_recorded"] == found["pair"]["template_now"]
    assert f"verdict: {found['verdict']}" in report.stdout
    assert len(found["forced"]) == 3


def test_another_targets_drafter_is_refused(run, models):
    assert_fault(run("doctor", models.target, models.stranger), 1, "digest")


def test_a_target_that_no_drafter_is_shipped_for(run, models):
    assert_fault(run("doctor", models.target), 2, "name one")
