"""Files that a kill cannot spoil: the old or the new, whole lines, one writer."""

from __future__ import annotations

import errno

import pytest

from dspine import durable
from dspine.durable import LineFile, write_aside
from dspine.errors import DataError


def test_write_aside_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    write_aside(path, b"older")
    inode = path.stat().st_ino
    write_aside(path, b"old")
    assert path.stat().st_ino != inode  # another file took its name: a reader never sees a half of it

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(durable.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_aside(path, b"new")
    assert path.read_bytes() == b"old"

    def full(handle):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(DataError, match=r"no space left on the disk while writing .*x\.bin"):
        write_aside(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]
    assert path.read_bytes() == b"old"


def test_lines_are_added_whole_and_a_torn_one_goes(tmp_path):
    path = tmp_path / "deep" / "lines.jsonl"
    lines = LineFile(path)
    lines.append({"a": "ä"})
    lines.close()
    with path.open("ab") as file:
        file.write(b'{"b": ')
    lines = LineFile(path)
    assert lines.whole == len('{"a": "ä"}\n'.encode())
    lines.trim()
    lines.append({"b": 2})
    lines.close()
    assert path.read_text(encoding="utf-8") == '{"a": "ä"}\n{"b": 2}\n'


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path):
    class Full:
        """Takes five bytes and then no more."""

        def __init__(self, file):
            self.file, self.left = file, 5

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, "full")
            taken, self.left = self.left, 0
            return self.file.write(data[:taken])

    path = tmp_path / "lines.jsonl"
    lines = LineFile(path)
    lines.append({"a": 1})
    lines._file = Full(lines._file)
    with pytest.raises(DataError, match=r"no space left on the disk while writing .*lines\.jsonl"):
        lines.append({"b": 2})
    assert path.read_bytes() == b'{"a": 1}\n'


def test_one_writer_at_a_time(tmp_path):
    lines = LineFile(tmp_path / "lines.jsonl")
    with pytest.raises(DataError, match="is being written by another process"):
        LineFile(tmp_path / "lines.jsonl")
    lines.close()
    LineFile(tmp_path / "lines.jsonl").close()
