"""`--verify`: how many candidates, in all commands that answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run, assert_fault, parsed

from dspine.decode import costbook
from dspine.decode.cost import Runs

LONG = ("Once upon", "-n", 40, "--ignore-eos", "--json")


@pytest.mark.parametrize("verify", ["auto", "full", "1", "3", "full+lookup", "auto+lookup:2", "tree:4+lookup"])
def test_the_tokens_are_the_same_with_each(generate: Run, verify: str) -> None:
    plain = parsed(generate(*LONG))
    report = parsed(generate(*LONG, "--verify", verify))
    assert report["token_ids"] == plain["token_ids"]
    assert report["verify"] == (int(verify) if verify.isdigit() else verify)
    assert report["verified"] == report["proposed"] / report["rounds"]
    if "+" not in verify and verify != "auto":
        bound = 3 if verify == "full" else int(verify)
        assert bound - 0.5 < report["verified"] <= bound


def test_auto_is_what_happens_unasked(generate: Run, run: Run, models: object) -> None:
    assert parsed(generate("Hello", "-n", 3, "--json"))["verify"] == "auto+lookup"
    plain = run("generate", "Hello", "-n", 3, "--json", "--target", models.target, "--no-drafter")
    assert (parsed(plain)["verify"], parsed(plain)["verified"]) == (None, 0)


def test_a_seed_is_verified_in_full(generate: Run) -> None:
    words = ("Hello", "-n", 24, "--ignore-eos", "--temperature", 1.0, "--seed", 7)
    auto, full = (parsed(generate(*words, "--json", "--verify", verify)) for verify in ("auto", "full"))
    assert auto["token_ids"] == full["token_ids"]
    assert auto["proposed"] == full["proposed"]
    assert auto["seed"] == 7
    assert parsed(generate(*words[:-2], "--json"))["seed"] is None  # none would give these tokens again
    said = generate(*words, "--stats", "--verify", "auto").stderr
    assert "of 3 candidates a round (--verify auto, in full for its seed)" in said


def test_stats_say_how_many_were_verified(generate: Run) -> None:
    assert "of 3 candidates a round (--verify 2)" in generate("Hello", "-n", 12, "--stats", "--verify", 2).stderr


def test_the_demo_says_it_too(run: Run, models: object) -> None:
    words = ("demo", "--target", models.target, "--drafter", models.drafter, "-n", 6, "--count", 1)
    assert "candidates verified a round (--verify auto+lookup)" in run(*words).stdout
    assert "candidates verified a round (--verify 1)" in run(*words, "--verify", 1).stdout


def test_without_a_drafter_a_lookup_is_all_that_can_be_asked_for(run: Run, models: object) -> None:
    words = ("generate", *LONG[:-1], "--target", models.target, "--no-drafter")
    plain = parsed(run(*words, "--json"))
    report = parsed(run(*words, "--json", "--verify", "full+lookup:1"))
    assert report["token_ids"] == plain["token_ids"]
    assert (report["verify"], report["drafter"]) == ("full+lookup:1", None)
    assert report["proposed"] > plain["proposed"] == 0
    for verify in ("auto+lookup", "tree:4+lookup", "full"):
        assert_fault(run(*words, "--verify", verify), 2, "leaves --verify nothing to do")


@pytest.mark.parametrize("verify", ["full+lookup:0", "scheduled+lookup", "+lookup", "full+look"])
def test_a_lookup_that_is_none_is_refused_before_anything_is_loaded(generate: Run, verify: str) -> None:
    assert_fault(generate("Hello", "--verify", verify), 2, f"--verify {verify}")


def test_a_seeded_request_looks_things_up_too(generate: Run) -> None:
    words = ("Hello", "-n", 24, "--ignore-eos", "--temperature", 1.0, "--seed", 7)
    auto, full = (parsed(generate(*words, "--json", "--verify", f"{rule}+lookup:1")) for rule in ("auto", "full"))
    assert auto["token_ids"] == full["token_ids"]
    assert auto["seed"] == 7
    said = generate(*words, "--stats", "--verify", "auto+lookup:1").stderr
    assert "(--verify auto+lookup:1, in full for its seed)" in said


def test_chat_takes_it(run: Run, models: object) -> None:
    words = ("chat", "--target", models.target, "--drafter", models.drafter, "-n", 6)
    each = [run(*words, "--verify", verify, stdin="Hi\n") for verify in ("auto", "full", "2")]
    assert [result.exit_code for result in each] == [0, 0, 0]
    assert len({result.stdout for result in each}) == 1


def test_costs_are_kept_and_measured_anew_when_asked(
    generate: Run, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def quick(target: object, drafter: object, rows: int, forward: object) -> Runs:
        asked.append(rows)
        return Runs({1: [1.0, 1.0], 4: [1.0, 1.0]}, [0.1, 0.1])  # twice the same: steady, so it is kept

    monkeypatch.setattr(costbook, "measure", quick)
    for file in costs.glob("*.json"):
        file.unlink()
    for words in ((), (), ("--measure",), ()):
        generate("Hello", "-n", 8, "--ignore-eos", *words)
    assert asked == [1, 1]
    assert len(list(costs.glob("*.json"))) == 1


@pytest.mark.parametrize("verify", ["all", "0", "-1", "2.5", "³", ""])
def test_other_words_are_refused(generate: Run, run: Run, models: object, verify: str) -> None:
    assert_fault(generate("Hello", "--verify", verify), 2, "--verify")
    demo = run("demo", "--target", models.target, "--drafter", models.drafter, "--verify", verify)
    assert_fault(demo, 2, "--verify")


def test_more_than_a_block_holds_is_refused(generate: Run) -> None:
    assert_fault(generate("Hello", "--verify", "4"), 1, "verify is 4", "1..3")


def test_nothing_can_be_verified_without_a_drafter(run: Run, models: object) -> None:
    words = ("Hello", "--target", models.target, "--no-drafter", "--verify", "2")
    assert_fault(run("generate", *words), 2, "--no-drafter")
    assert_fault(run("chat", *words[1:]), 2, "--no-drafter")
