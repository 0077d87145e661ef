"""Tokens by name and by bytes."""

from __future__ import annotations

import pytest
from tests.support.tiny_target import tiny_target

from dspine.decode.vocabulary import Vocabulary
from dspine.target import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.mark.parametrize("text", ["naïve – 🦔 日本", "plain words\n"])
def test_bytes_make_up_the_text_and_names_differ(target, text):
    vocabulary = Vocabulary(target.tokenizer)
    ids = target.tokenizer.encode(text, add_special_tokens=False)
    assert bytes(byte for token in ids for byte in vocabulary.bytes_of(token)).decode() == text
    names = {token: vocabulary.name(token) for token in ids}
    assert len(set(names.values())) == len(names)
    assert "\ufffd" not in "".join(names.values())


def test_special_tokens_have_their_names(target):
    [end] = target.tokenizer.encode("<|im_end|>", add_special_tokens=False)
    vocabulary = Vocabulary(target.tokenizer)
    assert vocabulary.name(end) == "<|im_end|>"
    assert vocabulary.special(end)
    assert not vocabulary.special(end + 300)
