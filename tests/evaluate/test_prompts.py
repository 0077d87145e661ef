"""Reported prompts and those for tuning: named by a seed, and never the same."""

from __future__ import annotations

import pytest

from dspine.errors import DataError
from dspine.evaluate.prompts import REPORTED, TaskPrompt, chosen, texts_digest

PROMPTS = [TaskPrompt(f"a/{i}", f"Question {i}?") for i in range(60)]


def ids(prompts):
    return [prompt.id for prompt in prompts]


def test_the_splits_share_nothing_and_make_up_the_set():
    reported, tuned = ids(chosen(PROMPTS, "report", REPORTED)), ids(chosen(PROMPTS, "tune", 10))
    assert sorted(reported + tuned) == sorted(ids(PROMPTS))


def test_fewer_prompts_are_the_first_of_more():
    for split in ("report", "tune"):
        assert chosen(PROMPTS, split, 3) == chosen(PROMPTS, split, 9)[:3]


def test_the_shuffle_is_the_named_one():
    assert ids(chosen(PROMPTS, "report", 5)) == ["a/37", "a/2", "a/21", "a/41", "a/10"]
    assert PROMPTS[0].id == "a/0", "the caller's list stays as it is"


def test_a_reported_text_is_not_tuned_on_under_another_id():
    reported, rest = chosen(PROMPTS, "report", 1)[0], chosen(PROMPTS, "tune", 10)
    twin = TaskPrompt(rest[0].id, f"  {reported.text.upper()} ")
    prompts = [twin if prompt.id == twin.id else prompt for prompt in PROMPTS]
    assert chosen(prompts, "tune", 9) == rest[1:]
    with pytest.raises(DataError, match="the tune split has 9"):
        chosen(prompts, "tune", 10)


@pytest.mark.parametrize(("split", "count", "held"), [("report", 51, 50), ("tune", 11, 10), ("tune", 0, 10)])
def test_more_than_a_split_holds_is_refused(split, count, held):
    with pytest.raises(DataError, match=f"{count} prompts were asked for, and the {split} split has {held}"):
        chosen(PROMPTS, split, count)


def test_the_digest_names_texts_in_their_order():
    one, other = PROMPTS[:2]
    assert texts_digest([one, other]) == texts_digest([TaskPrompt("x", one.text), other])
    assert texts_digest([one, other]) != texts_digest([other, one])
    assert texts_digest([one]) == "67b83b23c6ac"
