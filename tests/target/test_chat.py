"""Prompts and completion masks by the chat template, for one and three turns, with and without thinking."""

from __future__ import annotations

import pytest
from tests.support.tiny_target import CHAT_TEMPLATE, THINKING_TEMPLATE, tiny_target
from transformers import tokenization_utils_base

from dspine.errors import RequestError
from dspine.target.chat import completion_mask, render, template_digest

ONE = [{"role": "user", "content": "Né?"}, {"role": "assistant", "content": "Oui, 日本."}]
THREE = [
    {"role": "system", "content": "Be brief."},
    *ONE,
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "So?"},
    {"role": "assistant", "content": " two\n\nlines "},
]
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def plain():
    return tiny_target(num_hidden_layers=2)


@pytest.fixture(scope="module")
def thinker():
    return tiny_target(num_hidden_layers=2, chat_template=THINKING_TEMPLATE)


def test_render_ends_where_the_answer_begins(plain):
    ids = render(plain, ONE[:1])
    assert plain.tokenizer.decode(ids) == "<|im_start|>user\nNé?<|im_end|>\n<|im_start|>assistant\n"


def test_half_characters_are_refused(plain):
    with pytest.raises(RequestError, match=r"not Unicode: .* '\\udcff'"):
        render(plain, [{"role": "user", "content": "a\udcff"}])


def test_render_passes_the_thinking_flag(thinker):
    off, on = (thinker.tokenizer.decode(render(thinker, ONE[:1], thinking=flag)) for flag in (False, True))
    assert off == on + EMPTY_THOUGHT


def test_thinking_without_a_flag_is_refused(plain):
    with pytest.raises(RequestError, match="no thinking flag"):
        render(plain, ONE[:1], thinking=True)


def test_long_conversations_bring_no_words_of_the_librarys(monkeypatch):
    said = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", said.append)
    target = tiny_target(num_hidden_layers=2)
    target.tokenizer.model_max_length = 8
    assert len(render(target, ONE[:1] * 5)) > 8
    completion_mask(target, ONE)
    assert said == []


def test_a_target_without_template_is_refused_with_the_way_round_it():
    target = tiny_target(num_hidden_layers=2, chat_template=None)
    with pytest.raises(RequestError, match=r"tiny-qwen3 has no chat template\n.*--raw .*/v1/completions"):
        render(target, ONE[:1])
    assert template_digest(target) is None


@pytest.mark.parametrize(
    ("messages", "message"),
    [([], "conversation is empty"), ([{"role": "user"}], "refuses this conversation"), (ONE, "only users here")],
)
def test_conversations_that_cannot_be_rendered_are_refused(messages, message):
    refusing = (
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users here') }}{% endif %}"
        "{{ m.content + '' }}{% endfor %}"
    )
    with pytest.raises(RequestError, match=message):
        render(tiny_target(num_hidden_layers=2, chat_template=refusing), messages)


def written(target, messages, **flags):
    """The runs of the mask, as text."""
    ids, mask = completion_mask(target, messages, **flags)
    runs, run = [], []
    for token, wrote in [*zip(ids, mask, strict=True), (0, False)]:
        if wrote:
            run.append(token)
        elif run:
            runs.append(target.tokenizer.decode(run))
            run = []
    return runs


@pytest.mark.parametrize("messages", [ONE, THREE], ids=["one", "three"])
def test_the_mask_covers_each_answer_and_its_end_token(plain, messages):
    answers = [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"]
    assert written(plain, messages) == answers


@pytest.mark.parametrize("messages", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("thinking", [False, True])
def test_the_mask_with_a_thinking_flag(thinker, messages, thinking):
    answers = [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"]
    assert written(thinker, messages, thinking=thinking) == answers
    text = thinker.tokenizer.decode(completion_mask(thinker, messages, thinking=thinking)[0])
    assert text.count(EMPTY_THOUGHT) == (0 if thinking else len(answers))  # a given thought is not supervised


def test_what_precedes_the_mask_is_the_prompt_that_decoding_sees(thinker):
    ids, mask = completion_mask(thinker, THREE)
    start = len(mask) - mask[::-1].index(True)
    while mask[start - 1]:
        start -= 1
    assert ids[:start] == render(thinker, THREE[:-1])


def test_a_conversation_without_answers_has_an_empty_mask(plain):
    ids, mask = completion_mask(plain, ONE[:1])
    assert len(ids) == len(mask)
    assert not any(mask)


def test_a_template_that_rewrites_earlier_turns_is_refused():
    """As Qwen3's does: thoughts of turns that are not the last are dropped."""
    forgetful = THINKING_TEMPLATE.replace("message.role == 'assistant'", "message.role == 'assistant' and loop.last")
    target = tiny_target(num_hidden_layers=2, chat_template=forgetful)
    assert written(target, ONE) == ["Oui, 日本.<|im_end|>"]
    with pytest.raises(RequestError, match=r"tiny-qwen3 is not prefix-stable: it renders turn 3 of 7"):
        completion_mask(target, THREE)


def test_a_template_whose_prompt_is_no_prefix_of_its_turn_is_refused():
    target = tiny_target(num_hidden_layers=2, chat_template=CHAT_TEMPLATE.replace("assistant\n", "model\n"))
    with pytest.raises(RequestError, match="not prefix-stable"):
        completion_mask(target, ONE)


def test_a_template_without_an_end_token_is_refused():
    template = CHAT_TEMPLATE.replace("<|im_end|>", "[end]")
    with pytest.raises(RequestError, match="none of the end tokens"):
        completion_mask(tiny_target(num_hidden_layers=2, chat_template=template), ONE)


def test_the_digest_knows_template_and_flag(plain, thinker):
    assert template_digest(plain) == template_digest(tiny_target(seed=1, num_hidden_layers=2))
    assert template_digest(plain) == template_digest(plain, thinking=True)  # no flag, nothing to remember
    assert len({template_digest(plain), template_digest(thinker), template_digest(thinker, thinking=True)}) == 3
