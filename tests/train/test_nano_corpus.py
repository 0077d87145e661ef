"""nano's own text: the same for the same seed, right in its numbers, valid in its code, and split for good."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys

import pytest

from dspine.train.nano.code import code
from dspine.train.nano.corpus import SOURCES, conversations, held_out, prompts
from dspine.train.nano.stories import KINDS, story

FENCED = re.compile(r"```python\n(.*?)\n```", re.DOTALL)
SUM = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def test_a_seed_gives_the_same_conversations_in_any_process():
    script = (
        "from dspine.train.nano.corpus import conversations, prompts\n"
        "print(list(conversations(5, 30)), list(prompts(5, 12)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "src"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert outputs == {f"{list(conversations(5, 30))} {list(prompts(5, 12))}\n"}


def test_another_seed_gives_other_conversations():
    first = [row["messages"] for row in conversations(1, 30)]
    second = [row["messages"] for row in conversations(2, 30)]
    assert first != second


def test_conversations_take_turns_and_end_with_the_assistant():
    for row in conversations(0, 600):
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"].strip() == message["content"] != "" for message in row["messages"])
        assert row["source"] in SOURCES


def test_held_out_prompts_begin_no_training_conversation():
    begun = {row["messages"][0]["content"] for seed in range(4) for row in conversations(seed, 1500)}
    begun |= {row["messages"][0]["content"] for row in prompts(0, 1500, held=False)}
    kept = [row["messages"][0]["content"] for seed in (0, 9) for row in prompts(seed, 300)]
    assert not begun & set(kept)
    assert all(map(held_out, kept))


def test_prompts_are_different_and_of_every_source():
    rows = list(prompts(3, 300))
    assert len({row["messages"][0]["content"] for row in rows}) == len({row["id"] for row in rows}) == 300
    assert {row["source"] for row in rows} == set(SOURCES)
    assert all([message["role"] for message in row["messages"]] == ["user"] for row in rows)


def test_more_prompts_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dspine.train.nano.corpus._turns", lambda rng, source: [(f"{source} {rng.choice('ab')}", "x")])
    monkeypatch.setattr("dspine.train.nano.corpus.held_out", lambda text: True)
    with pytest.raises(ValueError, match="no 7 different story prompts"):
        list(prompts(0, 20))


@pytest.mark.parametrize("kind", KINDS)
def test_every_sum_in_a_story_is_right(kind):
    rng = random.Random(0)
    for _ in range(200):
        problem = kind(rng)
        assert problem.steps[-1].value >= 0
        for step in problem.steps:
            assert step.op != "/" or step.left % step.right == 0


def test_a_story_is_answered_by_its_last_step():
    rng = random.Random(1)
    for _ in range(300):
        _, answered = story(rng)
        steps = [tuple(found) for found in SUM.findall(answered)]
        assert len(steps) >= 2
        for left, op, right, value in steps:
            assert eval(f"{left} {op} {right}") == int(value)
        assert steps[-1][3] in re.findall(r"\d+", answered.rsplit("=", 1)[1])


def test_every_function_is_valid_python_and_has_the_name_asked_for():
    rng = random.Random(2)
    for _ in range(600):
        asked, answered = code(rng)
        found = FENCED.search(answered)
        assert found is not None
        functions = [node for node in ast.parse(found[1]).body if isinstance(node, ast.FunctionDef)]
        assert [function.name for function in functions] == re.findall(r"`(\w+)`", asked)[:1]


@pytest.mark.parametrize(
    ("asked", "given", "expected"),
    [
        ("returns the sum of the squares of the even numbers in a list", [1, 2, 3, 4], 20),
        ("returns the product of the odd numbers in a list", [2, 3, 5], 15),
        ("returns the number of the positive numbers in a list", [-1, 4, 9], 2),
        ("returns a list of the doubles of the negative numbers in a list", [-2, 5, -1], [-4, -2]),
    ],
)
def test_composed_functions_do_what_was_asked(asked, given, expected):
    rng = random.Random(3)
    answers = [answered for question, answered in (code(rng) for _ in range(8000)) if asked in question]
    assert len(answers) >= 3
    for answered in answers:
        space: dict[str, object] = {}
        found = FENCED.search(answered)
        assert found is not None
        exec(found[1], space)
        function = [value for name, value in space.items() if callable(value) and name not in ("prod",)][-1]
        assert function(given) == expected
