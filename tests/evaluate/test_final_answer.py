"""Final answers are found where responses put them, and compared in one form."""

from __future__ import annotations

import pytest

from dspine.evaluate.tasks.code import code_of, last_function
from dspine.evaluate.tasks.final_answer import boxed, last_number, same


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so \\boxed{3}.", "3"),
        ("\\boxed{1} no, \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed {a{b}c}", "a{b}c"),
        ("\\boxed{7} and then \\boxed{cut off", "7"),
        ("nothing", None),
    ],
)
def test_the_last_closed_box(text, found):
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("5 and 1,234.50 dollars.", "1,234.50"), ("it is -3", "-3"), ("none", None), ("$18", "18")]
)
def test_the_last_number(text, found):
    assert last_number(text) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,234", "1234"),
        ("18.00", "18"),
        ("\\dfrac{36}{5}", "\\frac{36}{5}"),
        ("\\frac12", "1/2"),
        ("\\frac{1}{2}", "0.5"),
        ("x = 3", "3"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
        ("10\\%", "10"),
        ("8\\sqrt{2}.", "8\\sqrt{2}"),
        ("\\text{Friday}", "Friday"),
        ("-\\frac{1}{2}", "-0.5"),
    ],
)
def test_the_same_answer_in_two_forms(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("3", "4"), ("1,2", "12"), ("\\frac{1}{2}", "\\frac{2}{1}"), ("x+1", "1+x"), ("", "0"), ("1e1000000000", "1")],
)
def test_other_answers_are_other_ones(one, other):
    assert not same(one, other)


def test_code_is_the_block_that_defines_the_name():
    text = "Try:\n```bash\nls\n```\n```python\nx = 1\n```\n```python\ndef f():\n    pass\n```\n"
    assert code_of(text, "f") == "def f():\n    pass\n"
    assert code_of(text) == "x = 1\n"
    assert code_of("def g(): pass") == "def g(): pass"
    assert code_of("```python\ndef f():\n    ret", "f") == "def f():\n    ret", "cut off by the cap"


def test_the_last_function_of_a_module():
    assert last_function("def a(): pass\nclass B:\n    def c(self): pass\n") == "a"
    assert last_function("x = (") is None
