"""Response files: strict reading, appending that survives a kill, settings that may not change."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, replace

import pytest

from dspine.errors import DataError
from dspine.train.responses import (
    ResponseMeta,
    ResponseRow,
    ResponseWriter,
    begun,
    read_meta,
    read_responses,
    responses_digest,
    training_sequence,
    training_sequences,
)

META = ResponseMeta("nano", "float32", "aa", "bb", {"temperature": 0.0}, 64, "cc")


def row(name="a/1", answer=(7, 8, 2), finish="stop"):
    return ResponseRow(name, "a", [{"role": "user", "content": "é?"}], [1, 5, 6], list(answer), finish)


def written(path, *rows, meta=META):
    with ResponseWriter(path, meta) as writer:
        for one in rows:
            writer.append(one)
    return path


def test_what_is_written_is_read(tmp_path):
    rows = [row("a/1"), row("a/2", (9,) * 5, "length")]
    path = written(tmp_path / "deep" / "r.jsonl", *rows)
    assert read_responses(path) == rows
    assert read_meta(path) == META
    assert [p.name for p in path.parent.iterdir()] == ["r.jsonl"]
    head = json.loads(path.read_text().splitlines()[0])
    assert head["format"] == "dspine-responses/1"
    assert (head["settings"]["template_digest"], head["settings"]["thinking"]) == ("bb", False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ""}, "id must be"),
        ({"source": 3}, "source must be"),
        ({"messages": "hello"}, "messages must be"),
        ({"messages": [{"role": "user", "content": None}]}, "messages must be"),
        ({"prompt_ids": []}, "prompt_ids must be"),
        ({"prompt_ids": [1, True]}, "prompt_ids must be"),
        ({"response_ids": [3, -1]}, "response_ids must be"),
        ({"response_ids": [3.0]}, "response_ids must be"),
        ({"finish_reason": "abort"}, "finish_reason must be stop or length"),
        ({"extra": 1}, "the field 'extra' is unknown"),
        ({"id": "a/1"}, "was used before, at .*line 1"),
    ],
)
def test_a_bad_row_names_file_and_line(tmp_path, change, said):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{json.dumps(asdict(row()))}\n{json.dumps(asdict(row('a/2')) | change)}\n")
    with pytest.raises(DataError, match=said) as caught:
        read_responses(path)
    assert f"{path}, line 2" in str(caught.value)


@pytest.mark.parametrize("name", list(asdict(row())))
def test_a_missing_field_is_named(tmp_path, name):
    given = asdict(row())
    del given[name]
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(given) + "\n")
    with pytest.raises(DataError, match=f"line 1: the field '{name}' is missing"):
        read_responses(path)


def test_a_file_without_rows(tmp_path):
    with pytest.raises(DataError, match="holds no responses"):
        read_responses(written(tmp_path / "r.jsonl"))


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_half_written_line_is_cut_off_and_nothing_else(tmp_path, kept):
    path = written(tmp_path / "r.jsonl", row("a/1"), row("a/2"))
    last = (json.dumps(asdict(row("a/3"))) + "\n").encode()
    with path.open("ab") as file:
        file.write(last[:kept])
    if kept == -1:  # a whole row that only lacks its newline can be read
        assert len(read_responses(path)) == 3
    else:
        with pytest.raises(DataError, match=r"line 4: not JSON.*\n.*cut off"):
            read_responses(path)
    with ResponseWriter(path, META) as writer:
        assert list(writer.rows) == ["a/1", "a/2"]
        writer.append(row("a/3"))
    assert [r.id for r in read_responses(path)] == ["a/1", "a/2", "a/3"]


def test_other_settings_are_refused_by_name_and_the_file_stays(tmp_path):
    path = written(tmp_path / "r.jsonl", row())
    with path.open("ab") as file:
        file.write(b'{"half')
    before = path.read_bytes()
    other = replace(META, head_digest="zz", max_new_tokens=65)
    with pytest.raises(DataError) as caught:
        ResponseWriter(path, other)
    said = str(caught.value)
    assert "head_digest: 'aa' → 'zz'" in said
    assert "max_new_tokens: 64 → 65" in said
    assert "template" not in said
    assert path.read_bytes() == before
    assert read_meta(path) == META


def test_rows_without_a_head_are_read_and_never_added_to(tmp_path):
    path = written(tmp_path / "r.jsonl", row())
    rest = path.read_text().split("\n", 1)[1]
    path.write_text(rest)
    assert read_responses(path) == [row()]
    assert read_meta(path) is None
    with pytest.raises(DataError, match="does not say how its rows were made"):
        ResponseWriter(path, META)
    assert path.read_text() == rest


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"format": "dspine-responses/1", "settings": {"target": "nano"}}, "does not hold the settings"),
        ({"format": "dspine-responses/1"}, "does not hold the settings"),
        ({"format": "dspine-answers/1", "settings": {}}, "not 'dspine-responses/1'"),
    ],
)
def test_a_head_of_something_else(tmp_path, head, said):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{json.dumps(head)}\n{json.dumps(asdict(row()))}\n")
    before = path.read_bytes()
    for use in (read_meta, lambda p: ResponseWriter(p, META)):
        with pytest.raises(DataError, match=said):
            use(path)
    assert path.read_bytes() == before


def test_a_file_is_begun_with_its_first_whole_row(tmp_path):
    path = tmp_path / "r.jsonl"
    assert not begun(path)
    path.write_bytes(b'{"format": "dspine')  # killed in the middle of the head
    assert not begun(path)
    path.unlink()
    assert not begun(written(path)), "a head alone binds nobody"
    whole = written(path, row("a/1")).read_bytes()
    _, own = whole.splitlines(keepends=True)
    path.write_bytes(whole[:-3])
    assert not begun(path)
    for there in (whole, own):  # rows of another origin have no head
        path.write_bytes(there)
        assert begun(path)
    with pytest.raises(DataError, match="cannot read"):
        begun(tmp_path)


def test_a_file_without_rows_takes_new_settings(tmp_path):
    path = written(tmp_path / "r.jsonl")
    other = replace(META, max_new_tokens=9)
    written(path, row(), meta=other)
    assert read_meta(path) == other


def test_two_writers_of_one_file(tmp_path):
    with ResponseWriter(tmp_path / "r.jsonl", META), pytest.raises(DataError, match="another process"):
        ResponseWriter(tmp_path / "r.jsonl", META)
    written(tmp_path / "r.jsonl", row())  # the lock goes with its holder


class FullDisk:
    """A file that takes `room` bytes more, a few at a time."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(len(data), self.room, 50)
        self.room -= taken
        return self.file.write(data[:taken])


def test_a_full_disk_leaves_whole_rows(tmp_path):
    path = tmp_path / "r.jsonl"
    with ResponseWriter(path, META) as writer:
        writer._lines._file = FullDisk(writer._lines._file, 200)
        writer.append(row("a/1"))
        with pytest.raises(DataError, match="no space left"):
            writer.append(row("a/2"))
        assert list(writer.rows) == ["a/1"]
    assert [r.id for r in read_responses(path)] == ["a/1"]
    assert path.read_bytes().endswith(b"}\n")


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match="cannot write"):
        ResponseWriter(tmp_path, META)


def test_the_mask_covers_the_response_and_its_end():
    sequence = training_sequence(row())
    assert sequence.ids == [1, 5, 6, 7, 8, 2]
    assert sequence.loss_mask == [False] * 3 + [True] * 3
    cut = training_sequence(row(), max_length=4)
    assert (cut.ids, cut.loss_mask) == ([1, 5, 6, 7], [False, False, False, True])


def turn(name, prompt, answer):
    return ResponseRow(name, "a", [], prompt, answer, "stop")


def test_turns_that_go_on_from_each_other_are_one_sequence():
    first = turn("x", [1, 5], [7, 2])
    second = turn("x#2", [1, 5, 7, 2, 3, 6], [8, 9, 2])
    third = turn("x#3", [1, 5, 7, 2, 3, 6, 8, 9, 2, 3], [4])
    alone = turn("y", [1], [2])
    for rows in ([first, second, third, alone], [third, alone, first, second]):
        found = {s.id: s for s in training_sequences(rows)}
        assert set(found) == {"x#3", "y"}
        assert found["x#3"].ids == third.prompt_ids + third.response_ids
        trained = [place for place, wanted in enumerate(found["x#3"].loss_mask) if wanted]
        assert trained == [2, 3, 6, 7, 8, 10]
    [cut] = training_sequences([first, second], max_length=7)
    assert cut.loss_mask == [False, False, True, True, False, False, True]


def test_a_turn_whose_past_was_written_anew_stands_alone():
    """As with a template that drops old thoughts, or an answer whose text makes other ids."""
    first, second = turn("x", [1, 5], [7, 7, 2]), turn("x#2", [1, 5, 7, 2, 3], [8, 2])
    third = turn("x#3", [1, 5, 7, 2, 3, 8, 2, 3], [4])
    found = {s.id: s.loss_mask for s in training_sequences([first, second, third])}
    assert found == {"x": [False] * 2 + [True] * 3, "x#3": [False] * 5 + [True] * 2 + [False] + [True]}
    lone = [turn("z#2", [1, 2], [3]), turn("w#1", [1], [2]), turn("w", [1], [2]), turn("v#", [1], [2])]
    assert [s.id for s in training_sequences(lone)] == ["z#2", "w#1", "w", "v#"]


def test_the_digest_is_of_the_set_of_ids():
    rows = [row("a/1"), row("a/2")]
    assert responses_digest(rows) == responses_digest(rows[::-1])
    others = [rows[:1], [rows[0], row("a/3")], [rows[0], row("a/2", (7, 8, 3))]]
    assert len({responses_digest(rows), *map(responses_digest, others)}) == 4
