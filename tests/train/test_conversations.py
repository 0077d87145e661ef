"""Dialogues of public data sets: the user's words stay, the answers go, and what cannot be asked is counted."""

from __future__ import annotations

import json

import pytest

from dspine.errors import DataError
from dspine.train.conversations import Dialogue, Unaskable, dialogue
from dspine.train.prompts import Prompt, prompt_rows, read_prompts


def human(text):
    return {"from": "human", "value": text}


def gpt(text="Sure."):
    return {"from": "gpt", "value": text}


def openai(*texts):
    """Messages of user and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


TWO = [{"from": "system", "value": "Be brief."}, human("One?"), gpt("1"), human("Two?"), gpt("2")]


def test_both_kinds_give_the_users_turns():
    assert dialogue(TWO) == Dialogue("Be brief.", ("One?", "Two?"))
    assert dialogue(openai("One?", "1", "Two?", "2")) == Dialogue(None, ("One?", "Two?"))
    parts = [{"role": "user", "content": [{"type": "text", "text": "On"}, {"type": "text", "text": "e?"}]}]
    assert dialogue(parts).turns == ("One?",)
    assert dialogue([human("a"), gpt(""), human("b")]).turns == ("a", "b")  # a last turn without an answer is asked too
    assert dialogue([{"from": "system", "value": " "}, human("a"), gpt()]).system is None


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([gpt(), human("x")], "begins with the assistant"),
        ([human("x"), human("y"), gpt()], "do not take turns"),
        ([human("x"), gpt(), gpt()], "do not take turns"),
        ([human("x"), {"from": "system", "value": "s"}], "do not take turns"),
        ([human(" "), gpt()], "says nothing"),
        ([{"from": "system", "value": "s"}], "says nothing"),
        ([{"role": "tool", "content": "x"}], "another speaker"),
        ([{"from": None, "value": "x"}], "another speaker"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "not text"),
        ([{"role": "user", "content": None}], "not text"),
        ([human("x"), {"role": "assistant", "content": None, "tool_calls": [1]}], "calls a tool"),
        ([human("a smile: \ud83d"), gpt()], "half a character"),
        ([], "not a list"),
        ("text", "not a list"),
        (["text"], "not a list"),
    ],
)
def test_what_cannot_be_asked_says_why(entries, why):
    with pytest.raises(Unaskable, match=why):
        dialogue(entries)


ROWS = [
    {"id": "s1", "conversations": TWO, "model": "some other"},
    {"id": 7, "conversations": [human("Seven?"), gpt()]},
    {"id": "s2", "conversations": [gpt(), human("x")]},
    {"conversations": [human("No name."), gpt()]},
    {"conversations": [human("No name."), gpt("answered otherwise")]},
    {"id": "own", "source": "mine", "prompt": "Plain"},
    {"id": "m", "messages": openai("One?", "1")},
    {"id": "goes-on", "messages": openai("One?", "1", "And?")},
]


@pytest.mark.parametrize("array", [False, True])
def test_a_file_of_all_kinds(tmp_path, capsys, array):
    path = tmp_path / ("set.json" if array else "set.jsonl")
    path.write_text(json.dumps(ROWS) if array else "".join(json.dumps(row) + "\n" for row in ROWS))
    found = {prompt.id: prompt for prompt in read_prompts(path)}
    assert len(found) == 6
    first = found["s1"]
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert (first.source, first.messages[1]["content"], first.later) == ("set", "One?", ("Two?",))
    assert found["7"].messages == ({"role": "user", "content": "Seven?"},)
    assert found["own"].source == "mine"
    assert found["m"].messages == ({"role": "user", "content": "One?"},)
    assert [m["content"] for m in found["goes-on"].messages] == ["One?", "1", "And?"]  # waits for its next answer
    unnamed = [name for name in found if name.startswith("set/")]
    assert len(unnamed) == 1  # named by what is asked, whatever was answered
    said = capsys.readouterr().err
    assert "2 dialogues are left out" in said
    assert "begins with the assistant: 1" in said
    assert "was there before: 1" in said


def test_names_do_not_depend_on_the_order(tmp_path):
    rows = [{"conversations": [human(f"Number {i}?"), gpt()]} for i in range(5)]
    for name, given in (("a", rows), ("b", rows[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    first, second = (read_prompts(tmp_path / name / "set.jsonl") for name in "ab")
    assert first == second[::-1]


def test_files_that_hold_nothing_to_ask(tmp_path):
    (tmp_path / "set.json").write_text(json.dumps(["x"]))
    with pytest.raises(DataError, match="row 1: a str where a JSON object"):
        read_prompts(tmp_path / "set.json")
    (tmp_path / "set.json").write_text("[{")
    with pytest.raises(DataError, match="not a JSON array"):
        read_prompts(tmp_path / "set.json")
    (tmp_path / "set.json").write_text(json.dumps([ROWS[2]]))
    with pytest.raises(DataError, match="holds no prompts"):
        read_prompts(tmp_path / "set.json")


def test_written_prompts_are_read_back(tmp_path):
    user, system = {"role": "user", "content": "é?"}, {"role": "system", "content": "Be brief."}
    answered = {"role": "assistant", "content": "1"}
    prompts = [
        Prompt("a", "s", (user,)),
        Prompt("b", "s", (system, user)),
        Prompt("c", "s", (user, answered, user)),
        Prompt("d", "s", (user,), ("Two?", "Three?")),
        Prompt("e", "t", (system, user), ("Two?",)),
    ]
    (tmp_path / "p.jsonl").write_bytes(prompt_rows(prompts))
    assert read_prompts(tmp_path / "p.jsonl") == prompts
    with pytest.raises(ValueError, match="answers before its later turns"):
        prompt_rows([Prompt("f", "s", (user, answered, user), ("Two?",))])
