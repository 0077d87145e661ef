"""Responses made through the built-in server say what those say that the engine makes here."""

from __future__ import annotations

import pytest
from tests.serve.http.conftest import QUESTIONS

from dspine.decode.sampling import SamplingParams
from dspine.train.prompts import Prompt
from dspine.train.regenerate import regenerate
from dspine.train.responses import read_responses
from dspine.train.server import Server


def prompts():
    asked = [Prompt(f"p{i}", "a", ({"role": "user", "content": text},)) for i, text in enumerate(QUESTIONS)]
    return [*asked, Prompt("d", "a", ({"role": "user", "content": QUESTIONS[1]},), ("Name two others.",))]


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9, top_k=40, seed=4)])
def test_the_same_answers_through_the_server(server, target, tmp_path, monkeypatch, sampling):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = {}
    for name, served in (("here", None), ("served", Server(f"{server.url}/v1", "nano", concurrency=3))):
        path = tmp_path / f"{name}.jsonl"
        summary = regenerate(
            target, prompts(), path, max_new_tokens=48, sampling=sampling, server=served, progress=False
        )
        assert summary.written == 5
        made[name] = {row.id: row for row in read_responses(path)}
    assert made["served"].keys() == made["here"].keys()
    for name, row in made["served"].items():
        assert len(row.response_ids) <= 48
        assert row.prompt_ids == made["here"][name].prompt_ids or name == "d#2"
        if sampling.greedy:  # else a seed gives other tokens of the same law: the server draws with its drafter
            assert row.response_ids == made["here"][name].response_ids
            assert row.finish_reason == made["here"][name].finish_reason
