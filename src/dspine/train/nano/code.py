"""Requests for small Python functions, and the functions.

One rule: every answer is valid Python (a test compiles them all), in the style that the request asks for.
Most requests are composed: what to keep (`Filter`), what to do with each (`Map`), what to make of them (`Fold`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from dspine.train.nano.snippets import SNIPPETS


@dataclass(frozen=True)
class Part:
    """A piece of a composed request: its words, its expression in `{x}`, its part of the function's name."""

    words: str
    code: str
    name: str


FILTERS: Final = (
    Part("numbers", "", "all"),
    Part("even numbers", "{x} % 2 == 0", "even"),
    Part("odd numbers", "{x} % 2 == 1", "odd"),
    Part("positive numbers", "{x} > 0", "positive"),
    Part("negative numbers", "{x} < 0", "negative"),
    Part("numbers above {n}", "{x} > {n}", "above"),
    Part("numbers below {n}", "{x} < {n}", "below"),
    Part("multiples of {n}", "{x} % {n} == 0", "multiples"),
)
MAPS: Final = (
    Part("", "{x}", ""),
    Part("squares", "{x} * {x}", "squares"),
    Part("doubles", "2 * {x}", "doubles"),
    Part("cubes", "{x} ** 3", "cubes"),
    Part("absolute values", "abs({x})", "absolute"),
)
# words, function of a list, start of the loop, body of the loop
FOLDS: Final = (
    ("the sum of", "sum", "0", "{r} += {e}", "sum"),
    ("the number of", "len", "0", "{r} += 1", "count"),
    ("a list of", "list", "[]", "{r}.append({e})", "list"),
    ("the product of", "prod", "1", "{r} *= {e}", "product"),
)
LIST_NAMES: Final = ("numbers", "values", "items", "data")
ITEM_NAMES: Final = ("x", "n", "number", "value", "item")
RESULT_NAMES: Final = ("result", "total", "out")
ASKING: Final = ("Write a Python function", "Write a function", "Please write a Python function", "I need a function")
OPENINGS: Final = ("Here is the function:", "Sure! Here is `{name}`:", "You can write it like this:", "This works:")


def code(rng: random.Random) -> tuple[str, str]:
    """One request and its answer."""
    return composed(rng) if rng.random() < 0.65 else known(rng)


def composed(rng: random.Random) -> tuple[str, str]:
    """A fold over a filtered and mapped list, as a loop or as a comprehension."""
    fold, kept, mapped = rng.choice(FOLDS), rng.choice(FILTERS), rng.choice(MAPS)
    if fold[4] == "count":
        mapped = MAPS[0]  # the number of squares is the number of numbers
    threshold, values, item = rng.randint(2, 12), rng.choice(LIST_NAMES), rng.choice(ITEM_NAMES)
    of = f"the {mapped.words} of " if mapped.words else ""
    what = f"{fold[0]} {of}the {kept.words.format(n=threshold)}".replace("a list of the squares", "a list of squares")
    name = "_".join(filter(None, (fold[4], mapped.name, kept.name)))
    if rng.random() < 0.3:
        name = rng.choice(("solve", "compute", "process", "f", "run"))
    loop, wish = rng.choice(((True, "Use a loop."), (False, "Use a comprehension."), (rng.random() < 0.5, "")))
    body = _loop(rng, fold, kept, mapped, threshold, values, item) if loop else _comprehension(
        fold, kept, mapped, threshold, values, item
    )  # fmt: skip
    doc = rng.random() < 0.35
    request = f"{rng.choice(ASKING)} `{name}` that returns {what} in a list called `{values}`. {wish}".strip()
    if doc:
        request += " Add a docstring."
        body = [f'"""Return {what} in {values}."""', *body]
    return request, answer(rng, name, f"def {name}({values}):", body, _explain(rng, loop, kept, values))


def _loop(
    rng: random.Random, fold: tuple[str, ...], kept: Part, mapped: Part, threshold: int, values: str, item: str
) -> list[str]:
    result = rng.choice(RESULT_NAMES)
    change = fold[3].format(r=result, e=mapped.code.format(x=item))
    inner = [f"    {change}"]
    if kept.code:
        inner = [f"    if {kept.code.format(x=item, n=threshold)}:", f"        {change}"]
    return [f"{result} = {fold[2]}", f"for {item} in {values}:", *inner, f"return {result}"]


def _comprehension(
    fold: tuple[str, ...], kept: Part, mapped: Part, threshold: int, values: str, item: str
) -> list[str]:
    condition = f" if {kept.code.format(x=item, n=threshold)}" if kept.code else ""
    inside = f"{mapped.code.format(x=item)} for {item} in {values}{condition}"
    if fold[1] == "list":
        return [f"return [{inside}]"]
    if fold[1] == "len":
        return [f"return len([{inside}])"]
    if fold[1] == "prod":
        return ["from math import prod", "", f"return prod({inside})"]
    return [f"return sum({inside})"]


def _explain(rng: random.Random, loop: bool, kept: Part, values: str) -> str:
    which = "every number" if not kept.code else "only the numbers that pass the test"
    how = f"It goes through `{values}` one by one" if loop else f"The comprehension reads `{values}` once"
    return rng.choice(("", "", f"{how} and takes {which}."))


def known(rng: random.Random) -> tuple[str, str]:
    """A well-known small function, with its own name and argument names."""
    snippet = rng.choice(SNIPPETS)
    name = snippet.name if rng.random() < 0.7 else rng.choice(("solve", "compute", "helper", "run", "check"))
    argument = rng.choice(snippet.arguments)
    words, body = snippet.words.format(a=argument), [line.format(a=argument, name=name) for line in snippet.body]
    request = f"{rng.choice(ASKING)} `{name}` that {words}."
    if rng.random() < 0.35:
        request += " Add a docstring."
        body = [f'"""{words.replace("`", "").capitalize()}."""', *body]
    signature = f"def {name}({argument}{snippet.rest}):"
    return request, answer(rng, name, signature, body, snippet.note if rng.random() < 0.4 else "")


def answer(rng: random.Random, name: str, signature: str, body: list[str], note: str) -> str:
    """An opening, the fenced function, sometimes an explanation."""
    lines = [line for line in body if line.startswith("from ")]  # imports stand above the function
    if lines:
        body = [line for line in body if line and line not in lines]
        lines += ["", ""]
    block = "\n".join([*lines, signature, *(f"    {line}" if line else "" for line in body)])
    opening = rng.choice(OPENINGS).format(name=name)
    return f"{opening}\n\n```python\n{block}\n```" + (f"\n\n{note}" if note else "")
