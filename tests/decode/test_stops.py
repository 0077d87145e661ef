"""Stop strings and stop ids: text, tokens and logprobs are cut alike, at the same token as in plain decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.oracle import OracleDrafter, oracle, outcome
from tests.support.tiny_target import tiny_target
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.decode.text import StopStrings
from dspine.target.model import Target

PROMPT = tuple(b"say something")
SCRIPTS = [(15,), (0,), (3, 0, 15, 1), (6,)]


def wordy_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0..255 are bytes, but some of them stand for several characters."""
    alphabet = bytes_to_unicode()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    words = {}
    for number, byte in enumerate(range(128, 256)):  # instead of half characters
        del vocabulary[alphabet[byte]]
        words["<" + chr(97 + number % 26) + chr(97 + number // 26) + ">"] = byte
    tokenizer = Tokenizer(models.BPE(vocabulary | words, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def target() -> Target:
    target = tiny_target(dtype=torch.float64, num_hidden_layers=3)
    target.tokenizer = wordy_tokenizer()
    target.decodable = 256
    target.eos_ids = frozenset()
    return target


@pytest.fixture(scope="module")
def taught(target: Target) -> OracleDrafter:
    return oracle(target, [PROMPT], [(0,)])


def pieces(target: Target, drafter: OracleDrafter) -> list[str]:
    """The text of each token of the answer."""
    return [target.tokenizer.decode([token]) for token in drafter.known[0].tokens[len(PROMPT) :]]


def cut(target: Target, drafter: OracleDrafter, stop: str | list[str], **more: int) -> Completion:
    """The completion, the same for plain decoding and for every script."""
    params = SamplingParams(max_new_tokens=50, stop=stop, logprobs=0, **more)
    [plain] = Engine(target).generate([PROMPT], params)
    for script in SCRIPTS:
        drafter.rescript(script)
        [got] = Engine(target, drafter).generate([PROMPT], params)
        assert outcome(got) == outcome(plain)
        assert len(got.logprobs) == len(got.token_ids)
        assert sum(r.kept for r in got.rounds) + 1 == len(got.token_ids)
        updates = list(Engine(target, drafter).stream(PROMPT, params))
        assert "".join(u.text for u in updates) == plain.text
    return plain


def test_a_stop_string_over_several_tokens(target: Target, taught: OracleDrafter) -> None:
    text = pieces(target, taught)
    for start in (3, 14, 15, 16, 20):  # inside the first round, over its end, in the second
        stop = "".join(text[start : start + 3])
        got = cut(target, taught, stop)
        end = "".join(text).index(stop)
        assert got.text == "".join(text)[:end]
        assert got.finish_reason == "stop"
        shortest = next(n for n in range(len(text)) if stop in "".join(text[:n]))
        assert len(got.token_ids) == shortest


def test_a_stop_string_inside_one_token(target: Target, taught: OracleDrafter) -> None:
    text = pieces(target, taught)
    place = next(i for i in range(6, 40) if len(text[i]) == 4 and text[i][1:3] not in "".join(text[:i]))
    got = cut(target, taught, text[place][1:3])
    assert got.text == "".join(text[:place]) + "<"
    assert len(got.token_ids) == place + 1


def test_a_stop_string_twice_in_a_block_counts_once(target: Target, taught: OracleDrafter) -> None:
    text = pieces(target, taught)
    got = cut(target, taught, ">")
    first = next(i for i, piece in enumerate(text) if ">" in piece)
    assert len(got.token_ids) == first + 1
    assert got.text == "".join(text[: first + 1])[:-1]
    assert sum(">" in piece for piece in text[:16]) >= 2


def test_the_first_of_several_stop_strings_wins(target: Target, taught: OracleDrafter) -> None:
    text = pieces(target, taught)
    late, early = "".join(text[30:33]), "".join(text[9:11])
    assert cut(target, taught, [late, early]).text == "".join(text)[: "".join(text).index(early)]
    inner, outer = text[9][1:], "".join(text[9:11])
    assert cut(target, taught, [outer, inner or outer]).text == "".join(text[:9]) + text[9][: 1 if inner else 0]


def test_text_that_only_looked_like_a_stop_string_is_let_go(target: Target, taught: OracleDrafter) -> None:
    text = pieces(target, taught)
    got = cut(target, taught, "".join(text[47:50]) + "never")
    assert got.text == "".join(text[:50])
    assert got.finish_reason == "length"


def test_a_stop_string_before_min_new_tokens_does_not_stop(target: Target, taught: OracleDrafter) -> None:
    text = pieces(target, taught)
    got = cut(target, taught, ">", min_new_tokens=20)
    later = next(i for i in range(19, len(text)) if ">" in text[i])
    assert len(got.token_ids) == later + 1
    assert got.text == "".join(text[: later + 1])[:-1]


def test_a_stop_id_has_no_text(target: Target, taught: OracleDrafter) -> None:
    text, tokens = pieces(target, taught), taught.known[0].tokens[len(PROMPT) :]
    place = next(i for i in range(8, 30) if tokens[i] not in tokens[:i])
    params = SamplingParams(max_new_tokens=50, stop_token_ids=[tokens[place]])
    for script in SCRIPTS:
        taught.rescript(script)
        [got] = Engine(target, taught).generate([PROMPT], params)
        assert list(got.token_ids) == tokens[: place + 1]
        assert got.text == "".join(text[:place])


@pytest.mark.parametrize("first", [True, False])
def test_a_stop_at_the_very_first_token(target: Target, taught: OracleDrafter, first: bool) -> None:
    text = pieces(target, taught)
    got = cut(target, taught, text[0] if first else text[0] + text[1])
    assert (got.text, got.finish_reason, len(got.token_ids)) == ("", "stop", 1 if first else 2)


# ---------------------------------------------------------------- the scanner alone


@given(text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_pieces_of_one_character_stop_where_the_first_stop_string_is_complete(text: str, stops: list[str]) -> None:
    scanner, out, stopped = StopStrings(stops), "", False
    for character in text:
        piece, stopped = scanner.push(character)
        out += piece
        if stopped:
            break
    complete = [n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)]
    if not complete:
        assert not stopped
        assert out + scanner.flush() == text
    else:
        longest = max(len(stop) for stop in stops if text[: complete[0]].endswith(stop))
        assert stopped
        assert out == text[: complete[0] - longest]
        assert scanner.flush() == ""


@given(
    text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), data=st.data()
)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    scanner, out = StopStrings(stops), ""
    while text:
        size = data.draw(st.integers(1, len(text)))
        piece, stopped = scanner.push(text[:size])
        out, text = out + piece, text[size:]
        if stopped:
            return
    held = scanner.flush()
    assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
