"""`dspine chat`, its input piped in."""

from __future__ import annotations

import pytest
from tests.cli.conftest import assert_fault

import dspine.answer
from dspine.cli.chat import Conversation
from dspine.cli.models import open_models
from dspine.decode.sampling import SamplingParams


@pytest.fixture
def chat(run, models):
    def call(*lines: str, words: tuple[str, ...] = ("-n", "5")):
        return run(
            "chat",
            "--target",
            models.target,
            "--drafter",
            models.drafter,
            *words,
            stdin="".join(f"{x}\n" for x in lines),
        )

    return call


def test_each_answer_comes_with_its_tau(chat):
    result = chat("Hello", "And you?")
    assert result.exit_code == 0
    assert result.stderr.count("tau ") == 2
    assert "tau" not in result.stdout


def test_exit_leaves_before_the_rest(chat):
    assert chat("/exit", "Hello").stdout == ""


def test_reset_forgets(chat):
    first, again = chat("Hello").stdout, chat("Something else", "/reset", "Hello")
    assert again.stdout.endswith(first)
    assert "forgotten" in again.stderr


def test_an_unknown_slash_word_is_explained_not_asked(chat):
    result = chat("/what")
    assert result.stdout == ""
    assert "/reset" in result.stderr


def test_a_full_context_is_said_and_survived(chat):
    result = chat("x" * 5000, "Hello")
    assert result.exit_code == 0
    assert "/reset forgets the conversation" in result.stderr
    assert result.stderr.count("tau ") == 1


def test_bad_sampling_is_refused_before_anything_is_loaded(chat):
    assert_fault(chat("Hello", words=("--min-p", "2")), 2, "min_p")


def test_a_conversation_remembers_and_a_broken_answer_is_not_kept(models, monkeypatch):
    conversation = Conversation(open_models(models.target, None), SamplingParams(max_new_tokens=4), "Be brief.")
    conversation.ask("One")
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    before = list(conversation.messages)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dspine.answer, "follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conversation.ask("Two")
    assert conversation.messages == before
    conversation.reset()
    assert conversation.messages == before[:1]
