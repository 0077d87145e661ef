"""Prompt files: strict reading, and a selection that depends on ids and seed alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine.errors import DataError
from dspine.train.prompts import Prompt, prompts_digest, read_prompts
from dspine.train.selection import select

GOOD = {"id": "a/1", "source": "a", "prompt": "What is two and two?"}


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def bank(source, count):
    return [Prompt(f"{source}/{i}", source, ({"role": "user", "content": f"{source} {i}"},)) for i in range(count)]


def test_the_three_shapes(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "Hello"}
    rows = [GOOD, {"messages": [system, user]}, {"turns": ["One?", "Two?", "Three?"], "meta": {"level": 1}}]
    first, second, third = read_prompts(write(tmp_path / "mine.jsonl", rows[0], "", rows[1], rows[2]))
    assert first == Prompt("a/1", "a", ({"role": "user", "content": "What is two and two?"},))
    assert second == Prompt("mine/3", "mine", (system, user))
    assert third == Prompt("mine/4", "mine", ({"role": "user", "content": "One?"},), ("Two?", "Three?"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ("[]", "a list where a JSON object"),
        ({"prompt": "x", "turns": ["y"]}, "prompt and turns"),
        ({"id": "x"}, "none of them"),
        ({"prompt": "x", "promt": "y"}, "unknown key 'promt'"),
        ({"prompt": "  "}, "prompt must be a string that is not empty"),
        ({"prompt": 3}, "prompt must be a string"),
        ({"prompt": "x", "id": 7}, "id must be a string"),
        ({"turns": []}, "turns must be a list"),
        ({"turns": ["x", ""]}, r"turns\[1\]"),
        ({"messages": {}}, "messages must be a list"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "role 'bot'"),
        ({"messages": [{"role": "user", "content": "x"}] * 2}, "'user' where 'assistant'"),
        ({"messages": [{"role": "system", "content": "x"}]}, "must end with the user's"),
        ({"messages": [{"role": "user", "content": "x"}], "system": "y"}, "its system message among them"),
        ({"turns": ["x"], "system": " "}, "system must be a string"),
        ({"prompt": "a smile: \ud83d"}, "prompt holds half a character"),
        ({"prompt": "x", "id": "\udc00"}, "id holds half a character"),
        (GOOD, r"id 'a/1' was used before, at .*line 1"),
    ],
)
def test_a_bad_row_names_file_and_line(tmp_path, row, said):
    path = write(tmp_path / "p.jsonl", GOOD, row)
    with pytest.raises(DataError, match=said) as caught:
        read_prompts(path)
    assert f"{path}, line 2" in str(caught.value)


def test_files_that_are_no_prompt_files(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="directory"):
        read_prompts(tmp_path)
    with pytest.raises(DataError, match="holds no prompts"):
        read_prompts(write(tmp_path / "empty.jsonl"))
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    with pytest.raises(DataError, match="line 1: not UTF-8"):
        read_prompts(tmp_path / "latin.jsonl")


def test_a_mark_of_utf8_at_the_head_is_no_fault(tmp_path):
    """Editors on Windows write one."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + (json.dumps(GOOD) + "\n").encode())
    assert [prompt.id for prompt in read_prompts(path)] == ["a/1"]
    path.with_suffix(".json").write_bytes(b"\xef\xbb\xbf" + json.dumps([GOOD]).encode())
    assert [prompt.id for prompt in read_prompts(path.with_suffix(".json"))] == ["a/1"]


def test_a_line_that_was_cut_off_is_called_so(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + '{"id": "a/2", "prom')
    with pytest.raises(DataError, match="cut off"):
        read_prompts(path)


def test_rows_are_taken_in_the_order_of_their_hash():
    rows = bank("a", 20) + bank("b", 20)
    ordered = sorted((p.id for p in rows[:20]), key=lambda i: sha256(f"7:{i}".encode()).hexdigest())
    chosen = select(rows, [("b", 2, ""), ("a", 5, "")], seed=7, held_out=3)
    assert [p.id for p in chosen.train if p.source == "a"] == ordered[:5]
    assert [p.id for p in chosen.held_out if p.source == "a"] == ordered[5:8]
    assert [p.source for p in chosen.train] == ["b"] * 2 + ["a"] * 5


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 3), st.randoms(use_true_random=False))
def test_held_out_rows_are_disjoint_and_neither_depends_on_the_order(count, held_out, seed, shuffle):
    rows = bank("a", 80) + bank("b", 5)
    shuffled: list[Prompt] = list(rows)
    random.Random(shuffle.random()).shuffle(shuffled)
    chosen = select(rows, [("a", count, " now")], seed, held_out)
    assert select(shuffled, [("a", count, " now")], seed, held_out) == chosen
    names = [p.id for p in chosen.train + chosen.held_out]
    assert len(names) == len(set(names)) == count + held_out


def test_a_question_trained_on_under_another_id_is_not_held_out():
    rows = bank("a", 9)
    order = [p.id for p in select(rows, [("a", 9, "")], seed=0).train]
    twin = {
        "role": "user",
        "content": "  A " + order[0].split("/")[1],
    }  # the first one's text, differently spaced
    rows = [Prompt(p.id, "a", (twin,)) if p.id == order[1] else p for p in rows]
    chosen = select(rows, [("a", 1, "")], seed=0, held_out=2)
    assert [p.id for p in chosen.held_out] == order[2:4]


def test_repeats_that_leave_too_few_to_hold_out_are_told():
    rows = [*bank("a", 4), *(replace(row, id=f"again/{row.id}") for row in bank("a", 4))]
    with pytest.raises(DataError, match=r"'a' has 8 prompts, [1-4] of them with a text that is trained on; .* 4 \+ 4"):
        select(rows, [("a", 4, "")], seed=0, held_out=4)


def test_the_suffix_goes_to_the_last_user_message():
    rows = [
        Prompt("1", "a", ({"role": "user", "content": "x"},)),
        Prompt("2", "a", ({"role": "user", "content": "x2"},), ("y", "z")),
    ]
    chosen = {p.id: p for p in select(rows, [("a", 2, " End.")], seed=0).train}
    assert chosen["1"].messages == ({"role": "user", "content": "x End."},)
    assert (chosen["2"].messages, chosen["2"].later) == (rows[1].messages, ("y", "z End."))
    assert rows[0].messages[0]["content"] == "x"  # what was given is left alone


@pytest.mark.parametrize(
    ("mix", "held_out", "said"),
    [
        ([("c", 1, "")], 0, "source 'c'\nSources here: a, b"),
        ([("a", 1, ""), ("a", 2, "")], 0, "twice"),
        ([("a", 6, "")], 0, "'a' has 5 prompts; the mix asks for 6"),
        ([("a", 3, "")], 3, r"'a' has 5 prompts; the mix asks for 3 \+ 3 held out"),
    ],
)
def test_a_mix_that_cannot_be_had(mix, held_out, said):
    with pytest.raises(DataError, match=said):
        select(bank("a", 5) + bank("b", 5), mix, 0, held_out)


def test_the_digest_is_of_the_set():
    rows = bank("a", 4)
    assert prompts_digest(rows) == prompts_digest(rows[::-1])
    others = [
        rows[:3],
        [*rows[:3], Prompt("a/3", "a", rows[3].messages, ("more",))],
        [*rows[:3], bank("b", 1)[0]],
    ]
    assert len({prompts_digest(rows), *map(prompts_digest, others)}) == 4
