"""Regeneration through a server: exact prompts, every parameter said, faults waited out, no row lost or made twice."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from threading import Thread, current_thread, main_thread
from time import sleep

import pytest
from tests.support.completions_server import completions_server, text_for
from tests.support.tiny_target import EOS, IM_END, THINKING_TEMPLATE, tiny_target

from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError, DataError, RequestError
from dspine.target.chat import render, template_digest
from dspine.train import server as serving
from dspine.train.prompts import Prompt
from dspine.train.regenerate import regenerate
from dspine.train.reply import Passing, read_reply
from dspine.train.responses import read_meta, read_responses
from dspine.train.server import Server

CAP = 40


@pytest.fixture(scope="module")
def target():
    return tiny_target(num_hidden_layers=2)


@pytest.fixture
def served():
    with completions_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def ask(name, text, *later):
    return Prompt(name, "a", ({"role": "user", "content": text},), later)


PROMPTS = [ask(f"a/{i}", "what " * (1 + i % 3) + str(i)) for i in range(12)]


def run(target, served, out, prompts=PROMPTS, **options):
    asked = {name: options.pop(name) for name in list(options) if name in Server.__dataclass_fields__}
    server = Server(**({"url": served.url, "model": "served", "concurrency": 3, "first_wait": 0.001} | asked))
    return regenerate(target, prompts, out, server=server, **{"max_new_tokens": CAP, "progress": False} | options)


def answers(path):
    return {row.id: row for row in read_responses(path)}


def test_rows_are_the_servers_answers_to_ids_rendered_here(target, served, tmp_path):
    served.together = 3
    summary = run(target, served, tmp_path / "r.jsonl")
    rows = answers(tmp_path / "r.jsonl")
    assert len(rows) == summary.written == 12
    assert (summary.retokenised, summary.rounds) == (12, 0)
    for prompt in PROMPTS:
        row = rows[prompt.id]
        assert row.prompt_ids == render(target, prompt.messages)
        assert row.response_ids == target.tokenizer(text_for(row.prompt_ids))["input_ids"] + [IM_END]
        assert row.finish_reason == "stop"
    assert served.most == 3
    body = served.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["top_p"]) == ("served", CAP, 0.0, 1.0)
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (
        320,
        0.0,
        1.0,
    )  # said, so that no default acts
    assert "seed" not in body


def test_the_head_says_how_it_was_made(tmp_path, served):
    target = tiny_target(num_hidden_layers=2, chat_template=THINKING_TEMPLATE)
    hot = SamplingParams(temperature=0.7, top_p=0.8, top_k=20, seed=3)
    run(target, served, tmp_path / "r.jsonl", sampling=hot, thinking=True)
    meta = read_meta(tmp_path / "r.jsonl")
    assert (meta.target, meta.server, meta.dtype) == ("tiny-qwen3", "served", "as served")
    assert (meta.thinking, meta.template_digest) == (True, template_digest(target, thinking=True))
    assert [meta.sampling[name] for name in ("temperature", "top_p", "top_k", "seed")] == [0.7, 0.8, 20, 3]
    sent = served.bodies[0]
    assert [sent[name] for name in ("temperature", "top_p", "top_k")] == [0.7, 0.8, 20]
    seeds = {tuple(body["prompt"]): body["seed"] for body in served.bodies}
    assert len(set(seeds.values())) == 12
    assert all(0 <= seed < 2**31 for seed in seeds.values())
    run(target, served, tmp_path / "again.jsonl", sampling=hot, thinking=True, concurrency=1)
    assert {tuple(body["prompt"]): body["seed"] for body in served.bodies} == seeds  # of the row, whatever the order


@pytest.mark.parametrize("fault", [429, 500, 503, "close", "text", "abort", "empty"])
def test_passing_faults_are_waited_out(target, served, tmp_path, fault):
    served.faults = [fault] * 5
    assert run(target, served, tmp_path / "r.jsonl").written == 12
    assert len(served.bodies) == 17
    whole = run(target, served, tmp_path / "whole.jsonl")
    assert whole.written == 12
    assert answers(tmp_path / "r.jsonl") == answers(tmp_path / "whole.jsonl")


def test_waits_double_and_heed_the_server(target, served, tmp_path, monkeypatch):
    waits = []
    sleep = serving.asyncio.sleep

    async def waited(seconds):
        ours = current_thread() is main_thread()  # other tests' servers, on threads of their own, sleep too
        if ours:
            waits.append(seconds)
        await sleep(0 if ours else seconds)

    monkeypatch.setattr(serving.asyncio, "sleep", waited)
    served.faults = [500] * 6
    run(target, served, tmp_path / "r.jsonl", PROMPTS[:1], first_wait=1.0)
    for tried, wait in enumerate(waits):
        assert 0.5 * 2**tried <= wait <= 2**tried
    waits.clear()
    served.faults, served.headers = [429, 503], {"Retry-After": "7"}
    run(target, served, tmp_path / "s.jsonl", PROMPTS[:1], first_wait=0.01)
    assert waits == [7.0, 7.0]


def test_a_lasting_fault_ends_the_run_and_loses_no_answer(target, served, tmp_path):
    path = tmp_path / "r.jsonl"
    served.faults = ["fine", "fine", 500]
    with pytest.raises(DataError, match=r"failed 1 times on 'a/.*HTTP 500\nWhat was answered is in the file"):
        run(target, served, path, retries=0, concurrency=4)
    came_in, done = len(served.bodies), answers(path)
    assert len(done) == came_in - 1 >= 2  # those under way were let finish
    summary = run(target, served, path)
    assert (summary.kept, summary.written) == (len(done), 12 - len(done))
    assert len(served.bodies) == came_in + 12 - len(done)
    assert len(answers(path)) == 12
    assert run(target, served, path).written == 0


def test_what_the_server_refuses_is_told_at_once(target, served, tmp_path):
    served.faults = [400]
    with pytest.raises(DataError, match=r"refuses with HTTP 400: .*fault 400"):
        run(target, served, tmp_path / "r.jsonl", concurrency=1)
    assert len(served.bodies) == 1


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"text": None, "token_ids": [1, 2]}, None),
        ({"text": None}, "neither text nor token ids"),
        ({"text": "x", "token_ids": [1, -2]}, "token id -2"),
        ({"text": "x", "token_ids": ["1"]}, "token ids that are no numbers"),
        ({"text": "x", "token_ids": 7}, "token ids that are no numbers"),
    ],
)
def test_nonsense_of_a_server_is_named(target, choice, said):
    body = {"choices": [{"finish_reason": "length", **choice}]}
    if said is None:
        assert read_reply(body, target).token_ids == (1, 2)
        return
    with pytest.raises((DataError, Passing), match=said):
        read_reply(body, target)


def test_a_strict_server_is_asked_without_extensions(target, served, tmp_path):
    served.refused = ["skip_special_tokens", "return_token_ids"]
    assert run(target, served, tmp_path / "r.jsonl").written == 12
    assert not {"skip_special_tokens", "return_token_ids"} & served.bodies[-1].keys()
    assert len(served.bodies) <= 12 + 2 * 3  # those that were under way before the first refusals came in
    served.refused.append("temperature")
    with pytest.raises(DataError, match="unknown parameter: temperature"):
        run(target, served, tmp_path / "s.jsonl")


def test_a_kill_loses_no_row_and_makes_none_twice(target, served, tmp_path):
    """The process is killed while requests are under way; the next one goes on with what is missing."""
    served.held_after = 5
    process = get_context("fork").Process(target=run, args=(target, served, tmp_path / "r.jsonl"))
    process.start()
    while len(served.bodies) < 8:  # five were answered and written, three wait for their answer
        sleep(0.001)
    process.kill()
    process.join()
    served.held_after = None
    served.gate.set()
    done = answers(tmp_path / "r.jsonl")
    assert len(done) == 5
    before = len(served.bodies)
    summary = run(target, served, tmp_path / "r.jsonl")
    assert (summary.kept, summary.written) == (5, 7)
    assert len(served.bodies) - before == 7
    run(target, served, tmp_path / "whole.jsonl")
    assert answers(tmp_path / "r.jsonl") == answers(tmp_path / "whole.jsonl")


def test_an_interrupt_drops_what_is_under_way(target, served, tmp_path):
    served.gate.clear()

    def interrupt():
        while not served.bodies:
            sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(target, served, tmp_path / "r.jsonl")
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    served.gate.set()
    assert run(target, served, tmp_path / "r.jsonl").written == 12


def test_later_turns_follow_the_servers_answers(target, served, tmp_path):
    run(target, served, tmp_path / "r.jsonl", [ask("x", "one", "two"), ask("y", "alone")])
    rows = answers(tmp_path / "r.jsonl")
    assert set(rows) == {"x", "x#2", "y"}
    assert rows["x#2"].messages[1] == {"role": "assistant", "content": text_for(rows["x"].prompt_ids)}


def test_ids_of_the_server_are_taken_as_they_are(target, served, tmp_path):
    served.ids = lambda text: [1, 2, 3, EOS]
    summary = run(target, served, tmp_path / "r.jsonl", PROMPTS[:2])
    assert summary.retokenised == 0
    assert {tuple(row.response_ids) for row in answers(tmp_path / "r.jsonl").values()} == {(1, 2, 3, EOS)}
    served.ids = lambda text: [1, 999]
    with pytest.raises(DataError, match=r"token id 999; tiny-qwen3 has 320\nIt serves another model"):
        run(target, served, tmp_path / "s.jsonl", PROMPTS[:2])


def test_an_answer_cut_by_the_cap_has_no_end(target, served, tmp_path, monkeypatch):
    served.finish = "length"
    monkeypatch.setattr("tests.support.completions_server.text_for", lambda prompt: "ab\ufffd")  # half a character
    summary = run(target, served, tmp_path / "r.jsonl", PROMPTS[:1])
    [row] = answers(tmp_path / "r.jsonl").values()
    assert (row.response_ids, row.finish_reason) == (list(b"ab"), "length")
    assert summary.unfinished == 1


def test_the_context_of_the_server_counts(target, tmp_path):
    size = len(render(target, PROMPTS[0].messages))
    with completions_server(length=size + 5) as served:
        run(target, served, tmp_path / "r.jsonl", PROMPTS[:1])
        assert served.bodies[0]["max_tokens"] == 5
        with pytest.raises(DataError, match=rf"has {size + 5} tokens; .* takes {size + 5}"):
            run(target, served, tmp_path / "s.jsonl", [ask("x", PROMPTS[0].messages[0]["content"] + "12345")])


def test_a_server_that_is_not_there_or_has_another_model(target, served, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"does not serve other\nIt serves: served"):
        run(target, served, tmp_path / "r.jsonl", model="other")
    with pytest.raises(DataError, match=r"no model server answers at http://127\.0\.0\.1:9/v1"):
        run(target, served, tmp_path / "r.jsonl", url="http://127.0.0.1:9/v1")
    monkeypatch.setenv("A_KEY", "secret")
    run(target, served, tmp_path / "r.jsonl", api_key_env="A_KEY")
    assert set(served.keys) == {"Bearer secret"}
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        run(target, served, tmp_path / "s.jsonl", api_key_env="NO_SUCH_KEY")


def test_what_a_server_is_not_asked_for(target, served, tmp_path):
    for given in ({"logit_bias": {3: 1.0}}, {"min_new_tokens": 2}):
        with pytest.raises(RequestError, match=next(iter(given))):
            run(target, served, tmp_path / "r.jsonl", sampling=SamplingParams(**given))
    with pytest.raises(RequestError, match="drafts by itself"):
        run(target, served, tmp_path / "r.jsonl", drafter=object())
    assert not served.bodies


def test_a_finished_file_needs_no_server(target, served, tmp_path):
    run(target, served, tmp_path / "r.jsonl")
    assert run(target, served, tmp_path / "r.jsonl", url="http://127.0.0.1:9/v1").kept == 12
    with pytest.raises(DataError, match="server: 'served' → None"):
        regenerate(target, PROMPTS, tmp_path / "r.jsonl", max_new_tokens=CAP, progress=False)
