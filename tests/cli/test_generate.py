"""`dspine generate`: what goes where, and what is refused."""

from __future__ import annotations

import pytest
from tests.cli.conftest import assert_fault, parsed

import dspine.answer


def test_only_the_answer_is_on_standard_output(generate):
    wanted = parsed(generate("Hello", "-n", 12, "--json"))["text"]
    result = generate("Hello", "-n", 12, "--stats", "--profile", "--verify", "full")
    assert result.exit_code == 0
    assert result.stdout == wanted + "\n"
    for words in ("tokens/s", "tau", "verify/forward", "draft/", "float32 on cpu"):
        assert words in result.stderr


def test_bfloat16_is_the_default_of_a_cpu_that_multiplies_it(generate, monkeypatch):
    monkeypatch.setattr("dspine.kernels.alike.bfloat16_serves", lambda: True)
    assert parsed(generate("Hello", "-n", 2, "--json"))["dtype"] == "bfloat16"
    assert parsed(generate("Hello", "-n", 2, "--json", "--dtype", "float32"))["dtype"] == "float32"


def test_streamed_and_whole_answers_are_the_same(generate):
    assert generate("Hello", "-n", 12).stdout == generate("Hello", "-n", 12, "--no-stream").stdout


def test_the_drafter_changes_no_token(generate, run, models):
    drafted = parsed(generate("Once upon", "-n", 40, "--ignore-eos", "--json", "--verify", "full"))
    plain = parsed(
        run("generate", "Once upon", "-n", 40, "--ignore-eos", "--json", "--target", models.target, "--no-drafter")
    )
    assert drafted["token_ids"] == plain["token_ids"]
    assert plain["drafter"] is None
    assert plain["rounds"] == len(plain["token_ids"]) - 1
    assert drafted["proposed"] > 0


def test_json_says_what_was_measured_on_what(generate, models):
    report = parsed(generate("Hello", "-n", 6, "--json", "--profile"))
    assert report["target"] == models.target
    assert report["drafter"] == models.drafter
    assert report["finish_reason"] in ("stop", "length")
    assert report["completion_tokens"] == len(report["token_ids"])
    assert report["tau"] == report["kept"] / report["rounds"]
    assert len(report["head_digest"]) == len(report["drafter_digest"]) == 64
    assert report["sampling"]["max_new_tokens"] == 6
    assert {stage["name"] for stage in report["stages"]} >= {"prefill", "verify/forward"}


@pytest.mark.parametrize("words", [(), ("-",)])
def test_the_prompt_can_come_from_standard_input(generate, words):
    assert generate(*words, "-n", 8, stdin="Hello").stdout == generate("Hello", "-n", 8).stdout


def test_raw_uses_no_template(generate):
    raw = parsed(generate("Hello", "--raw", "-n", 4, "--json"))
    assert raw["prompt_tokens"] == len("Hello")
    assert parsed(generate("Hello", "-n", 4, "--json"))["prompt_tokens"] > len("Hello")


def test_a_seed_gives_the_same_tokens_again(generate):
    words = ("Hello", "-n", 12, "--temperature", 1.0, "--top-k", 40, "--json", "--seed")
    assert parsed(generate(*words, 7))["token_ids"] == parsed(generate(*words, 7))["token_ids"]
    assert parsed(generate(*words, 7))["token_ids"] != parsed(generate(*words, 8))["token_ids"]


@pytest.mark.parametrize("stdin", ["", "  \n"])
def test_an_empty_prompt_is_refused(generate, stdin):
    assert_fault(generate(stdin=stdin), 1, "the prompt is empty")
    assert_fault(generate(stdin), 1, "the prompt is empty")


def test_a_prompt_longer_than_the_context_is_refused(generate):
    assert_fault(generate("x" * 5000), 1, "4096", "shorten the prompt")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--temperature", "-1"), "temperature"),
        (("--temperature", "nan"), "temperature"),
        (("--top-p", "0"), "top_p"),
        (("--top-k", "many"), "--top-k"),
        (("--max-new-tokens", "0"), "max_new_tokens"),
        (("--min-new-tokens", "9", "-n", "8"), "min_new_tokens"),
        (("--stop", ""), "stop"),
        (("--beams", "4"), "--beams"),
        (("--dtype", "int4"), "int4"),
        (("--raw", "--system", "Be brief."), "--raw"),
        (("--no-drafter",), "--no-drafter"),
    ],
)
def test_words_that_cannot_be_honoured_are_refused(generate, words, said):
    assert_fault(generate("Hello", *words), 2, said)


def test_a_missing_target_is_named(run, tmp_path):
    assert_fault(run("generate", "Hello", "--target", tmp_path / "none"), 1, "there is no folder")


def test_a_folder_without_a_model_is_refused(run, tmp_path):
    assert_fault(run("generate", "Hello", "--target", tmp_path), 1, "config.json")


def test_a_missing_drafter_is_named(run, models, tmp_path):
    result = run("generate", "Hello", "--target", models.target, "--drafter", tmp_path / "none")
    assert_fault(result, 1, "no such folder")


def test_a_drafter_of_another_target_is_refused(run, models):
    result = run("generate", "Hello", "--target", models.target, "--drafter", models.stranger)
    assert_fault(result, 1, "LM head")


def test_without_a_shipped_drafter_it_says_so_and_decodes_plainly(run, models):
    result = run("generate", "Hello", "-n", 2, "--target", models.target)
    assert result.exit_code == 0
    assert "no drafter is shipped" in result.stderr


def test_an_interrupt_has_its_own_exit_code(generate, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dspine.answer, "follow", interrupted)
    assert_fault(generate("Hello"), 130, "interrupted")


@pytest.mark.parametrize("words", [(), ("--raw",)])
def test_a_prompt_that_is_not_unicode_is_refused(generate, words):
    assert_fault(generate("a\udcff", *words), 1, "not Unicode", "UTF-8")


def test_standard_input_that_is_not_utf8_is_refused(run, models):
    result = run("generate", "-", "--target", models.target, "--no-drafter", stdin=b"a\xff")
    assert_fault(result, 1, "standard input is not UTF-8: byte 1")
