"""OpenAI's own client against the server: every answer is the engine's."""

from __future__ import annotations

import openai
import pytest
from tests.serve.http.conftest import QUESTIONS

from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.target.chat import render


def asking(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def engine(make_engine) -> Engine:
    return make_engine(max_batch=1)


@pytest.fixture(scope="module")
def own(engine, target):
    """The engine's own answer to a question."""

    def call(text: str, **params) -> Completion:
        return engine.generate([render(target, asking(text))], SamplingParams(**params))[0]

    return call


def test_chat(client, own):
    wanted = own(QUESTIONS[0], max_new_tokens=30)
    given = client.chat.completions.create(model="nano", messages=asking(QUESTIONS[0]), temperature=0, max_tokens=30)
    assert given.object == "chat.completion"
    assert given.model == "nano"
    [choice] = given.choices
    assert (choice.message.role, choice.message.content) == ("assistant", wanted.text)
    assert choice.finish_reason == wanted.finish_reason
    assert choice.logprobs is None
    usage, details = given.usage, given.usage.completion_tokens_details
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(wanted.prompt_ids), len(wanted.token_ids))
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    landed = sum(min(record.accepted, record.kept) for record in wanted.rounds)
    assert details.accepted_prediction_tokens == landed > 0
    assert details.rejected_prediction_tokens == sum(record.proposed for record in wanted.rounds) - landed > 0
    assert (usage.completion_tokens - 1) / details.rounds == pytest.approx(wanted.tau)


def test_a_conversation_in_parts_and_with_the_clients_own_answer(client, own, target, engine):
    first = client.chat.completions.create(model="nano", messages=asking(QUESTIONS[1]), temperature=0, max_tokens=8)
    parts = [{"type": "text", "text": "Name "}, {"type": "text", "text": "more."}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        *asking(QUESTIONS[1]),
        first.choices[0].message.model_dump(),
        {"role": "user", "content": parts},
    ]
    given = client.chat.completions.create(model="nano", messages=messages, temperature=0, max_completion_tokens=8)
    plain = [
        {"role": "system", "content": "Be brief."},
        *asking(QUESTIONS[1]),
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "Name more."},
    ]
    [wanted] = engine.generate([render(target, plain)], SamplingParams(max_new_tokens=8))
    assert given.choices[0].message.content == wanted.text


def test_a_stream_says_what_the_whole_answer_says(client, own):
    wanted = own(QUESTIONS[2], max_new_tokens=40, temperature=0.8, top_p=0.9, seed=5, logprobs=2)
    chunks = list(
        client.chat.completions.create(
            model="nano",
            messages=asking(QUESTIONS[2]),
            temperature=0.8,
            top_p=0.9,
            seed=5,
            max_tokens=40,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(wanted.token_ids)
    told = [chunk.choices[0] for chunk in chunks[:-1]]
    assert len(told) > 5  # piece by piece
    assert "".join(choice.delta.content or "" for choice in told) == wanted.text
    assert [choice.finish_reason for choice in told if choice.finish_reason] == [wanted.finish_reason]
    entries = [entry for choice in told if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.logprob for entry in entries] == [each.logprob for each in wanted.logprobs]
    assert [len(entry.top_logprobs) for entry in entries] == [2] * len(wanted.token_ids)
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith(wanted.text)


def test_several_choices_have_the_seeds_that_follow(client, own):
    wanted = [own(QUESTIONS[1], max_new_tokens=12, temperature=1.0, seed=7 + choice).text for choice in range(3)]
    given = client.chat.completions.create(model="nano", messages=asking(QUESTIONS[1]), seed=7, n=3, max_tokens=12)
    assert [choice.index for choice in given.choices] == [0, 1, 2]
    assert [choice.message.content for choice in given.choices] == wanted
    assert len(set(wanted)) > 1


def test_stops_penalties_and_biases_reach_the_engine(client, own, target):
    plain = own(QUESTIONS[0], max_new_tokens=30).text
    stop = plain[8:12]
    given = client.chat.completions.create(
        model="nano", messages=asking(QUESTIONS[0]), temperature=0, max_tokens=30, stop=stop
    )
    assert given.choices[0].message.content == plain[: plain.index(stop)]
    assert given.choices[0].finish_reason == "stop"

    [token] = target.tokenizer.encode("orange", add_special_tokens=False)[:1]
    wanted = own(
        QUESTIONS[0],
        max_new_tokens=20,
        frequency_penalty=1.5,
        presence_penalty=0.5,
        repetition_penalty=1.2,
        logit_bias={token: -50},
        min_new_tokens=20,
        ignore_eos=True,
    )
    given = client.chat.completions.create(
        model="nano",
        messages=asking(QUESTIONS[0]),
        temperature=0,
        max_tokens=20,
        frequency_penalty=1.5,
        presence_penalty=0.5,
        logit_bias={str(token): -50},
        extra_body={"repetition_penalty": 1.2, "min_tokens": 20, "ignore_eos": True},
    )
    assert given.choices[0].message.content == wanted.text != plain


def test_completions_of_texts_and_of_ids(client, engine, target):
    texts = ["def add(a, b):", "There are"]
    ids = [target.tokenizer.encode(text) for text in texts]
    wanted = engine.generate(ids, SamplingParams(max_new_tokens=6, logprobs=1))
    for prompt in (texts, ids):
        given = client.completions.create(model="nano", prompt=prompt, temperature=0, max_tokens=6, logprobs=1)
        assert [choice.text for choice in given.choices] == [each.text for each in wanted]
        assert [choice.index for choice in given.choices] == [0, 1]
        assert given.usage.prompt_tokens == sum(map(len, ids))
        assert given.choices[1].logprobs.token_logprobs == [each.logprob for each in wanted[1].logprobs]
        assert "".join(given.choices[0].logprobs.tokens).startswith(wanted[0].text)
    streamed = client.completions.create(model="nano", prompt=ids[0], temperature=0, max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == wanted[0].text


def test_ids_come_back_where_they_are_asked_for(client, own, target):
    wanted = own(QUESTIONS[0], max_new_tokens=24)
    asked = {"model": "nano", "temperature": 0, "max_tokens": 24, "extra_body": {"return_token_ids": True}}
    given = client.chat.completions.create(messages=asking(QUESTIONS[0]), **asked)
    assert tuple(given.prompt_token_ids) == wanted.prompt_ids
    assert tuple(given.choices[0].token_ids) == wanted.token_ids
    chunks = list(client.chat.completions.create(messages=asking(QUESTIONS[0]), stream=True, **asked))
    assert tuple(chunks[0].prompt_token_ids) == wanted.prompt_ids
    assert tuple(id for chunk in chunks[1:] for id in chunk.choices[0].token_ids) == wanted.token_ids

    prompts = [list(wanted.prompt_ids), target.tokenizer.encode("There are")]
    both = client.completions.create(prompt=prompts, **asked).choices
    assert [choice.prompt_token_ids for choice in both] == prompts
    assert tuple(both[0].token_ids) == wanted.token_ids
    chunks = [chunk.choices[0] for chunk in client.completions.create(prompt=prompts[0], stream=True, **asked)]
    assert [getattr(chunk, "prompt_token_ids", None) for chunk in chunks] == [prompts[0], *[None] * (len(chunks) - 1)]
    assert tuple(id for chunk in chunks for id in chunk.token_ids) == wanted.token_ids
    silent = client.completions.create(model="nano", prompt=prompts[0], temperature=0, max_tokens=2)
    assert not hasattr(silent.choices[0], "token_ids")


def test_prompts_are_counted_once_however_many_answers_they_have(client, target):
    given = client.completions.create(model="nano", prompt=["one", "two three"], n=2, max_tokens=2)
    assert len(given.choices) == 4
    ids = [target.tokenizer.encode(text) for text in ("one", "two three")]
    assert given.usage.prompt_tokens == sum(map(len, ids))


def test_models(client):
    assert [model.id for model in client.models.list()] == ["nano"]
    assert client.models.retrieve("nano").owned_by == "dspine"
    with pytest.raises(openai.NotFoundError, match="other is not served here"):
        client.models.retrieve("other")
