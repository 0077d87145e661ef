"""Final answers of mathematics: found in a response, and compared.

One rule: exact match after writing both in one form (spacing, units, fractions, dollar signs, thousands). What is the
same only by computing is not the same here, so that accuracy is never flattered; numbers are compared as numbers.
Source: the conventions of MATH (Hendrycks et al. 2021) and GSM8K (Cobbe et al. 2021).
"""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_SLASHED = re.compile(r"^(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}$")
_DROPPED = ("\\left", "\\right", "\\!", "\\,", "\\;", "\\:", "\\ ", "$", "^{\\circ}", "^\\circ", "\\%", "%")


def boxed(text: str) -> str | None:
    """What the last closed `\\boxed{...}` holds."""
    for start in reversed([m.end() for m in re.finditer(r"\\boxed\s*\{", text)]):
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[start:end]
    return None


def last_number(text: str) -> str | None:
    """The last number that the text writes in digits."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def same(one: str, other: str) -> bool:
    """Whether two final answers are the same."""
    left, right = _form(one), _form(other)
    if left == right:
        return True
    numbers = _value(left), _value(right)
    return None not in numbers and numbers[0] == numbers[1]


def _form(text: str) -> str:
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf)\{([^{}]*)\}", r"\1", text.strip())
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    for dropped in _DROPPED:
        text = text.replace(dropped, "")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"^[a-zA-Z]\s*=\s*", "", text)  # "x = 3" answers what x is
    return re.sub(r"\s+", "", text).rstrip(".")


def _value(text: str) -> Fraction | None:
    slashed = _SLASHED.match(text)
    if slashed:
        text = f"{slashed[1]}{slashed[2]}/{slashed[3]}"
    if "e" in text.lower():  # a power of ten that somebody's model wrote may take all memory to write out
        return None
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None
