"""nano's tokenizer: every text comes back, and the mask id is nobody's but the drafter's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dspine.train.nano.corpus import conversations
from dspine.train.nano.tokenizer import IM_END, MASK, SPECIALS, train_tokenizer


def contents(count):
    return [message["content"] for row in conversations(0, count) for message in row["messages"]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A small one, saved and read again as a target is."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(contents(200), 400, max_length=64).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=60)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not any(special in text for special in SPECIALS):
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "text", ["naïve café", "日本語 と 🙂👩‍👩‍👧", "\ttab\r\n  two\n\n\n", "  lead and trail  ", "\x00\x7f\u2028"]
)
def test_unicode_and_white_space_come_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_every_digit_is_a_token_of_its_own():
    """Even of a number that is seen more often than any word."""
    trained = train_tokenizer([*contents(200), "2026 " * 2000], 400, max_length=64)
    pieces = [trained.decode([i]) for i in trained("2026 + 20", add_special_tokens=False)["input_ids"]]
    assert [piece for piece in pieces if piece.strip().isdigit()] == ["2", "0", "2", "6", "2", "0"]


def test_the_template_is_chatml_and_never_writes_the_mask(tokenizer):
    for row in conversations(1, 90):
        messages = [{"role": "system", "content": "Be brief."}, *row["messages"]]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert tokenizer.convert_tokens_to_ids(MASK) not in ids
        expected = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        assert tokenizer.decode(ids) == expected + "<|im_start|>assistant\n"


def test_the_special_ids(tokenizer):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
    assert [tokenizer.convert_tokens_to_ids(special) for special in specials] == [0, 1, 2, 3]
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.mask_token) == (IM_END, "<|endoftext|>", MASK)
    assert len(tokenizer) == 400


def test_texts_that_cannot_fill_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="give more texts or ask for fewer ids"):
        train_tokenizer(["aa ab"], 400, max_length=64)
