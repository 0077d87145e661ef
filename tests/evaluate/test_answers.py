"""Files of measured answers: what is written is read, a kill loses nothing, other settings are refused."""

from __future__ import annotations

import json

import pytest

from dspine.decode.records import RoundRecord
from dspine.errors import DataError
from dspine.evaluate.answers import AnswerFile, AnswerRecord, prompt_digest, read_answers

SETTINGS = {"target": "tiny", "drafter": "aa", "temperature": 0.0, "seed": None, "max_new_tokens": 8}
ROUNDS = (RoundRecord(3, 1, 2), RoundRecord(3, 3, 2))


def answer(name="a/1", **changes):
    fields = {"id": name, "task": "a", "prompt": "ff", "text": "so", "finish": "stop", "rounds": ROUNDS}
    fields["tokens"] = (4, 5, 6, 7, 2)
    return AnswerRecord(**fields | changes)


def written(path, *answers, settings=SETTINGS):
    with AnswerFile(path, settings) as file:
        for one in answers:
            file.append(one)
    return path


def test_what_is_written_is_read(tmp_path):
    given = [answer("a/1"), answer("a/é", seed=2**62, finish="length"), answer("b", tokens=(2,), rounds=())]
    given.append(answer("tree", rounds=(RoundRecord(3, 1, 2, 7), RoundRecord(3, 3, 2))))
    given.append(answer("looked up", rounds=(RoundRecord(15, 1, 2, looked_up=True), RoundRecord(3, 3, 2))))
    path = written(tmp_path / "deep" / "a.jsonl", *given)
    assert read_answers(path) == (SETTINGS, {one.id: one for one in given})
    with AnswerFile(path, SETTINGS) as file:
        assert file.answers == {one.id: one for one in given}


def test_a_line_that_a_kill_cut_off_is_removed(tmp_path):
    path = written(tmp_path / "a.jsonl", answer("a/1"), answer("a/2"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match="line 3 holds no measured answer"):
        read_answers(path)
    assert written(path, answer("a/2")).read_bytes() == whole


@pytest.mark.parametrize("kept", [0, 1, 20, 60])
def test_so_is_a_head_that_was_cut_off(tmp_path, kept):
    path = written(tmp_path / "a.jsonl", answer())
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    assert written(path, answer()).read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drafter": "bb"}, "drafter: 'aa' → 'bb'$"),
        ({"temperature": 1.0, "seed": 0}, "seed: None → 0; temperature: 0.0 → 1.0$"),
        ({"device": "cuda"}, "device: None → 'cuda'$"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, change, said):
    path = written(tmp_path / "a.jsonl", answer())
    before = path.read_bytes()
    with pytest.raises(DataError) as caught:
        AnswerFile(path, SETTINGS | change)
    assert caught.match(said.rstrip("$"))
    assert caught.value.what.endswith(said.rstrip("$").split("; ")[-1])
    assert path.read_bytes() == before


def test_a_setting_that_is_gone_is_another_setting(tmp_path):
    path = written(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="drafter: 'aa' → None"):
        AnswerFile(path, {name: value for name, value in SETTINGS.items() if name != "drafter"})


@pytest.mark.parametrize("content", ["hello", '{"id": "a/1"}\n', '{"format": "dspine-answers/9", "settings": {}}\n'])
def test_another_kind_of_file_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    for opened in (lambda: AnswerFile(path, SETTINGS), lambda: read_answers(path)):
        with pytest.raises(DataError, match="is not a file of measured answers"):
            opened()
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": [4, 5, 6]}, "its rounds do not make up its tokens"),
        ({"rounds": [[1, 2]]}, "missing 1 required positional argument"),
        ({"extra": 1}, "unexpected keyword argument 'extra'"),
    ],
)
def test_a_broken_line_is_named(tmp_path, change, said):
    path = written(tmp_path / "a.jsonl", answer("a/1"), answer("a/2"))
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | change)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=f"line 3 holds no measured answer: .*{said}"):
        read_answers(path)


def test_a_second_answer_to_a_question_is_named(tmp_path):
    path = written(tmp_path / "a.jsonl", answer())
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(DataError, match="line 3: a second answer to 'a/1'"):
        read_answers(path)


def test_two_processes_do_not_share_a_file(tmp_path):
    with AnswerFile(tmp_path / "a.jsonl", SETTINGS), pytest.raises(DataError, match="another process"):
        AnswerFile(tmp_path / "a.jsonl", SETTINGS)


def test_a_prompt_is_named_by_its_ids():
    assert prompt_digest([1, 23]) == prompt_digest((1, 23)) != prompt_digest([12, 3])
