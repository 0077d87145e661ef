"""One request followed to its end."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dspine.answer import follow
from dspine.decode.records import Completion, Update
from dspine.decode.sampling import SamplingParams

DONE = Completion(0, (1,), (5, 6, 7), " a b\n", "length", ())


def _engine(*updates: Update) -> SimpleNamespace:
    def stream(prompt: list[int], params: SamplingParams) -> Iterator[Update]:
        yield from updates

    return SimpleNamespace(stream=stream)


def test_the_pieces_are_shown_as_they_are_and_empty_ones_are_not():
    shown: list[str] = []
    engine = _engine(Update(0, " a", (5,)), Update(0, "", (6,)), Update(0, " b\n", (7,), completion=DONE))
    given = follow(engine, [1], SamplingParams(), shown.append)
    assert shown == [" a", " b\n"]
    assert given.completion is DONE
    assert given.tokens_per_second == pytest.approx(3 / given.seconds)


def test_an_engine_that_forgets_the_end_is_a_bug():
    with pytest.raises(RuntimeError, match="without its completion"):
        follow(_engine(Update(0, "a", (5,))), [1], SamplingParams())
