"""Answers in which every token shows its round, whether it was drafted, and what else was likely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dspine.report.found import Result
from dspine.report.section import Section, facts

MARKS = {"first": "prefill's", "accepted": "drafted", "corrected": "corrected", "bonus": "bonus", "plain": "plain"}


def sections(results: Sequence[Result]) -> Iterator[Section]:
    """A section for each file."""
    for number, result in enumerate(results):
        on = result.measured_on
        yield Section(
            anchor=f"answers-{number}",
            title=f"Answers token by token, {on['target']}, T = {on['temperature']:g}",
            says="A box is a round, with its number. A candidate that stood is underlined; the target's own token is "
            "framed: in place of the first candidate that fell (corrected, ✗) or behind a whole block that stood "
            "(bonus, ✓). Below each token stands the runner-up: the likeliest other one, by the target at temperature "
            f"1. {facts(on, 'drafter')}.",
            answers=[{**line, "by_round": by_round(line["tokens"])} for line in result.lines],
            measured_on={result.path.name: on},
        )


def by_round(tokens: Sequence[dict[str, Any]]) -> list[tuple[int, list[dict[str, Any]]]]:
    """The tokens of each round."""
    return [
        (
            number,
            [
                {**token, "says": _says(token), "shown": visible(token["text"]), "other": visible(token["runner_up"])}
                for token in group
            ],
        )
        for number, group in groupby(tokens, key=lambda token: int(token["round"]))
    ]


def visible(text: str) -> str:
    """A token's text with its line breaks and its outer spaces to be seen; nothing for part of a character."""
    if not text:
        return "…"
    shown = text.replace("\n", "⏎").replace("\t", "⇥")
    begin, end = len(shown) - len(shown.lstrip(" ")), len(shown) - len(shown.rstrip(" "))
    if begin == len(shown):
        return "␣" * begin
    return "·" * begin + shown[begin : len(shown) - end] + "·" * end


def _says(token: dict[str, Any]) -> str:
    chance = f"{100 * token['chance']:.1f} %"
    other = f"{100 * token['runner_up_chance']:.1f} %"
    return f"round {token['round']}, {MARKS[token['kind']]}, {chance}; runner-up {token['runner_up']!r}, {other}"
