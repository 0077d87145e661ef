"""Text in pieces: characters stay whole, and the pieces are the text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.oracle import OracleDrafter, oracle, outcome
from tests.support.tiny_target import EOS, IM_END, tiny_target, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from dspine.decode.engine import Engine
from dspine.decode.records import Update
from dspine.decode.sampling import SamplingParams
from dspine.decode.text import REPLACEMENT, Detokenizer
from dspine.target.model import Target

PROMPT = tuple(b"write in every language")
ANSWER = "naïve 日本語 🙂🙃 Ω€ ok — fin." * 2


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


def dictated(answer: bytes) -> SamplingParams:
    """Parameters under which the target can only say `answer` (one token a byte), then EOS."""
    said = [*answer, EOS]

    def dictate(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = min(ids.shape[1] - len(PROMPT), len(said) - 1)
        only = torch.full_like(scores, -torch.inf)
        only[:, said[place]] = 0.0
        return only

    return SamplingParams(processors=[dictate], max_new_tokens=len(said) + 40)


@pytest.mark.parametrize("script", [(15,), (0,), (1, 2, 0, 5), (3, 11)])
def test_multi_byte_characters_over_rounds(target: Target, script: tuple[int, ...]) -> None:
    params = dictated(ANSWER.encode())
    drafter = OracleDrafter(target)
    drafter.learn(PROMPT, [*ANSWER.encode(), EOS], script)
    updates = list(Engine(target, drafter).stream(PROMPT, params))
    assert "".join(u.text for u in updates) == ANSWER == updates[-1].completion.text
    assert not any(REPLACEMENT in u.text for u in updates)
    assert updates[-1].completion.finish_reason == "stop"
    assert [t for u in updates for t in u.token_ids] == [*ANSWER.encode(), EOS]
    assert [u.finished for u in updates] == [False] * (len(updates) - 1) + [True]
    said, told = "", 0
    for update in updates[:-1]:  # every complete character is out as soon as its last byte is there
        said, told = said + update.text, told + len(update.token_ids)
        assert said == ANSWER.encode()[:told].decode(errors="ignore")


def test_an_incomplete_character_at_the_end_is_flushed(target: Target) -> None:
    params = dictated("a日".encode()[:-1]).model_copy(update={"max_new_tokens": 3})
    updates = list(Engine(target).stream(PROMPT, params))
    assert "".join(u.text for u in updates) == "a" + REPLACEMENT == updates[-1].completion.text
    assert updates[-1].completion.finish_reason == "length"


def test_streams_give_what_generate_gives(target: Target) -> None:
    drafter = oracle(target, [PROMPT], [(3, 0, 15, 1)])
    params = SamplingParams(max_new_tokens=40)
    updates = list(Engine(target, drafter).stream(PROMPT, params))
    [whole] = Engine(target).generate([PROMPT], params)
    assert outcome(updates[-1].completion) == outcome(whole)
    assert tuple(t for u in updates for t in u.token_ids) == whole.token_ids
    assert "".join(u.text for u in updates) == whole.text == target.tokenizer.decode(whole.token_ids)
    assert [len(u.token_ids) for u in updates] == [1, 4, 1, 16, 2, 4, 1, 11]


def test_streams_and_requests_run_side_by_side(target: Target) -> None:
    prompts = [PROMPT, tuple(b"second"), tuple(b"third one")]
    drafter = oracle(target, prompts, [(3, 0), (1,), (6, 2)])
    engine = Engine(target, drafter, max_batch=2)
    added = engine.add(prompts[2], SamplingParams(max_new_tokens=30))
    streams: list[Iterator[Update]] = [engine.stream(p, SamplingParams(max_new_tokens=30)) for p in prompts[:2]]
    got: list[list[Update]] = [[], []]
    for _ in range(40):
        for index, stream in enumerate(streams):
            got[index].extend([update] if (update := next(stream, None)) else [])
    later = []
    while engine.pending or not later:
        later += engine.step()
    assert [u.request_id for u in later] == [added] * len(later)
    for updates, known in zip([*got, later], drafter.known, strict=True):
        assert [t for u in updates for t in u.token_ids] == known.tokens[len(known.prompt) :][:30]
        assert "".join(u.text for u in updates) == updates[-1].completion.text


# ---------------------------------------------------------------- the detokenizer alone


def joined(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    stream = Detokenizer(tokenizer)
    return "".join(stream.push(token) for token in ids) + stream.flush()


@given(ids=st.lists(st.integers(0, 319), max_size=120))
def test_any_bytes_give_the_tokenizers_own_text(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> None:
    assert joined(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=True)


@given(text=st.text(max_size=60))
def test_pieces_hold_whole_characters(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    text = text.replace(REPLACEMENT, "")
    ids, stream, out = list(text.encode()), Detokenizer(tokenizer), ""
    for count, token in enumerate(ids, start=1):
        out += stream.push(token)
        assert out == text.encode()[:count].decode(errors="ignore")
    assert stream.flush() == ""


def test_special_tokens_have_no_text(tokenizer: PreTrainedTokenizerFast) -> None:
    assert joined(tokenizer, [*b"a", IM_END, *b"b" * 40, IM_END, IM_END, *"é".encode()]) == "a" + "b" * 40 + "é"


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Its decoder drops the space before the first word, so a word alone reads otherwise than inside a text; id 10 is
    special."""
    words = ["▁a", "b", "▁", "▁cd", "e", "<0xC3>", "<0xA9>", "▁f", "<0xE2>", "g"]
    backend = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


WORDS = [[0], [1], [2], [3], [4], [7], [9], [10], [5, 6]]  # 5 and 6 are the bytes of a character


@given(units=st.lists(st.sampled_from(WORDS), max_size=80))
@example(units=[[0]] + [[10]] * 40 + [[0], [7], [0]])  # words with nothing but special tokens before them
@example(units=[[1]] + [[5, 6]] * 40 + [[0], [5, 6]])  # bytes are decoded as a run: half a character spoils it
@example(units=[[1], [1]] + [[5, 6]] * 40 + [[0], [5, 6]])
def test_spaces_and_bytes_of_a_sentencepiece_tokenizer(units: list[list[int]]) -> None:
    tokenizer, ids = sentencepiece_tokenizer(), [token for unit in units for token in unit]
    assert joined(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=True)


class Counting:
    """A tokenizer that counts the ids that it is asked to decode."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.ids = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.ids += len(token_ids)
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))


@pytest.mark.parametrize("before", ["", "some words"])
def test_a_run_of_special_tokens_is_not_decoded_again_and_again(
    tokenizer: PreTrainedTokenizerFast, before: str
) -> None:
    """What comes behind an ignored EOS, as load tests ask for it, costs no more a token than text does."""
    ids = [*before.encode(), *[EOS, IM_END] * 400, *" é".encode(), *[EOS] * 100, *b"!"]
    counting = Counting(tokenizer)
    assert joined(counting, ids) == before + " é!"
    assert counting.ids < 30 * len(ids)


def test_what_is_out_stays_where_malformed_bytes_change_what_was_before() -> None:
    tokenizer, stream = sentencepiece_tokenizer(), Detokenizer(sentencepiece_tokenizer())
    pieces = [stream.push(token) for token in (1, 5, 6, 5, 9)]
    assert pieces[:3] == ["b", "", "é"]
    assert pieces[3] == ""
    assert pieces[4].strip(REPLACEMENT) == "g"
    assert tokenizer.decode([1, 5, 6, 5, 9]) == "b" + 3 * REPLACEMENT + "g"
