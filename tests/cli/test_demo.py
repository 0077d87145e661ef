"""`dspine demo` and its proof that nothing changed."""

from __future__ import annotations

import math

import pytest
import torch
from tests.cli.conftest import assert_fault
from tests.support.tiny_target import tiny_target

import dspine.demo
from dspine.answer import Answer
from dspine.cli.demo import cells
from dspine.decode.records import Completion, RoundRecord
from dspine.demo import Outcome
from dspine.evaluate.margin import first_margin
from dspine.kernels.kv import Span

PROMPT = list(b"Hello")


@pytest.fixture
def demo(run, models):
    def call(*words: object):
        return run("demo", "--target", models.target, "--drafter", models.drafter, "-n", 10, "--count", 2, *words)

    return call


def test_the_demo_reports_both_ways_and_succeeds(demo):
    result = demo()
    assert result.exit_code == 0, result.output
    for words in ("tau", "plain s", "drafted s", "ratio", "equal", "peak memory", "float32 on cpu"):
        assert words in result.stdout


def test_the_last_line_counts_all_prompts_together():
    def outcome(kept: list[int], drafted: float, plain: float) -> Outcome:
        rounds = tuple(RoundRecord(5, count - 1, count) for count in kept)
        done = Completion(0, (1,), tuple(range(1 + sum(kept))), "", "length", rounds)
        return Outcome("Hello", Answer(done, drafted), Answer(done, plain), None)

    one, two = outcome([4], 1.0, 3.0), outcome([1, 1, 2], 2.0, 1.5)
    assert cells([one]) == ("5", "1", "4.00", "3.00", "1.00", "3.00x")
    assert cells([one, two]) == ("10", "4", "2.00", "4.50", "3.00", "1.50x")


def test_the_demo_fails_when_a_token_differs(demo, monkeypatch):
    monkeypatch.setattr(dspine.demo, "first_margin", lambda *_: 0.5)
    result = demo()
    assert result.exit_code == 1
    assert "NO" in result.stdout
    assert "report this" in result.stderr


def test_the_demo_shows_a_near_tie_and_succeeds(demo, monkeypatch):
    monkeypatch.setattr(dspine.demo, "first_margin", lambda *_: 1e-5)
    result = demo()
    assert result.exit_code == 0
    assert "near-tie" in result.stdout


def test_the_demo_needs_a_drafter(run, models):
    assert_fault(run("demo", "--target", models.target), 2, "--drafter")


def test_more_prompts_than_there_are(demo):
    assert_fault(demo("--count", 99), 2, "prompts")


def test_the_margin_is_that_of_the_two_likeliest_tokens():
    target = tiny_target()
    ids = torch.tensor([[*PROMPT, 1, 2]])
    hidden = target.forward(ids, target.new_cache(1), Span(0, (0,), ids.shape[1])).hidden
    top = target.logits(hidden[0, -1]).topk(3)
    best, second, third = top.indices.tolist()
    margin = float(top.values[0] - top.values[1])
    assert first_margin(target, PROMPT, (1, 2, best, 9), (1, 2, second, 9)) == pytest.approx(margin, rel=1e-4)
    assert first_margin(target, PROMPT, (1, 2, best), (1, 2, third)) == math.inf
    assert first_margin(target, PROMPT, (1, 2), (1, 2, best)) == math.inf
    assert first_margin(target, PROMPT, (1, 2, best), (1, 2, best)) is None
