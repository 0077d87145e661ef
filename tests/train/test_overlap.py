"""Evaluation prompts in training data: found by 13 words in a row, whatever stands around and between them."""

from __future__ import annotations

from dspine.train.overlap import GRAM, Evaluation, grams, words
from dspine.train.prompts import Prompt

LONG = "A shop sells three pens for five coins, and Mary has forty coins left: how many pens can she buy?"


def ask(name, text, *later):
    return Prompt(name, "a", ({"role": "user", "content": text},), later)


def found(evaluation, **rows):
    return Evaluation("set", evaluation).overlap([(name, [text]) for name, text in rows.items()])


def test_grams_are_thirteen_words_whatever_stands_between_them():
    assert words("It's 3.5, née\n 'X_1'!") == ("it", "s", "3", "5", "née", "x_1")
    assert list(grams(tuple("abc"))) == [tuple("abc")]
    assert list(grams(())) == []
    many = tuple(map(str, range(15)))
    assert list(grams(many)) == [many[:13], many[1:14], many[2:]]
    assert GRAM == 13


def test_a_prompt_is_met_from_thirteen_words_on():
    spoken = words(LONG)
    thirteen, twelve = " - ".join(spoken[3:16]).upper(), " ".join(spoken[3:15])
    report = found([ask("e/1", LONG), ask("e/2", "Other " + LONG[::-1])], t1=f"Well: {thirteen}!", t2=twelve, t3="no")
    assert (report.prompts, report.met, report.rows) == (2, ["e/1"], ["t1"])
    assert report.commonest == (" ".join(spoken[3:16]), 1)


def test_a_short_prompt_is_met_as_a_whole_alone():
    report = found([ask("e/1", "Who are you?")], t1="who are YOU", t2="Tell me, who are you?", t3="Who are")
    assert report.rows == ["t1"]


def test_later_turns_count_and_the_commonest_words_are_told():
    report = found([ask("e/1", "Hi.", LONG), ask("e/2", LONG)], t1=LONG, t2=LONG + " Now.", t3="hi")
    assert report.met == ["e/1", "e/2"]
    assert report.rows == ["t1", "t2", "t3"]
    assert report.commonest is not None
    assert report.commonest[1] == 2
    assert found([ask("e/1", "...")], t1="...").commonest is None
