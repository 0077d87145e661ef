"""Arithmetic stories with worked steps and a final answer.

One rule: every number in an answer is right, and follows from the question by the steps that are written down.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dspine.train.nano.words import BOXES, FRIENDS, NAMES, PLACES, THINGS


@dataclass(frozen=True)
class Step:
    """One line of working: `left op right = value`, and what the value means in words."""

    left: int
    op: str
    right: int
    meaning: str

    @property
    def value(self) -> int:
        """The result of the step (division is exact by construction)."""
        results = {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}
        return results[self.op] if self.op in results else self.left // self.right

    @property
    def sum(self) -> str:
        """The written calculation, for example `3 * 4 = 12`."""
        return f"{self.left} {self.op} {self.right} = {self.value}"


@dataclass(frozen=True)
class Problem:
    """A question, its worked steps, and the sentence that answers it (`{}` takes the number)."""

    question: str
    steps: tuple[Step, ...]
    answer: str


def story(rng: random.Random) -> tuple[str, str]:
    """One question and its worked answer."""
    problem = rng.choice(KINDS)(rng)
    request, style = rng.choice(STYLES)
    layout = rng.choice(LAYOUTS) if style is None else style
    question = f"{problem.question} {request}".strip()
    return question, layout(rng, problem)


# --- kinds of problem ------------------------------------------------------------------------------------------------


def running_total(rng: random.Random) -> Problem:
    """Somebody starts with some things, and two or three events change the number."""
    name, (_, things) = rng.choice(NAMES), rng.choice(THINGS)
    total = rng.randint(8, 40)
    parts, steps = [f"{name} has {total} {things}."], []
    for turn in range(rng.randint(2, 3)):
        gain = rng.random() < 0.5 or total < 6
        change = rng.randint(2, 12) if gain else rng.randint(2, min(9, total - 1))
        told, meaning = rng.choice(GAINS if gain else LOSSES)
        when = "" if turn == 0 else rng.choice(("Then ", "Later ", "After that "))
        parts.append(f"{when}{name} {told.format(n=change, place=rng.choice(PLACES))}.")
        steps.append(Step(total, "+" if gain else "-", change, meaning.format(n=change)))
        total = steps[-1].value
    parts.append(f"How many {things} does {name} have now?")
    return Problem(" ".join(parts), tuple(steps), f"{name} has {{}} {things} now")


def packs(rng: random.Random) -> Problem:
    """Some boxes of equal size, of which some things are taken."""
    name, (_, things), (_, boxes) = rng.choice(NAMES), rng.choice(THINGS), rng.choice(BOXES)
    count, each = rng.randint(2, 9), rng.randint(2, 10)
    taken = rng.randint(1, count * each - 1)
    asked = (
        f"{name} buys {count} {boxes} with {each} {things} in each. {name} uses {taken} of them. "
        f"How many {things} are left?"
    )
    first = Step(count, "*", each, f"{count} {boxes} of {each} hold that many {things}")
    return Problem(asked, (first, Step(first.value, "-", taken, f"{taken} are used")), f"{{}} {things} are left")


def sharing(rng: random.Random) -> Problem:
    """Things are collected and shared evenly."""
    name, (_, things) = rng.choice(NAMES), rng.choice(THINGS)
    people, each = rng.randint(2, 9), rng.randint(2, 9)
    first = rng.randint(1, people * each - 1)
    group = rng.choice(FRIENDS)
    asked = (
        f"{name} finds {first} {things} and gets {people * each - first} more. {name} shares them equally among "
        f"{people} {group}. How many {things} does each of them get?"
    )
    total = Step(first, "+", people * each - first, f"this is what {name} has in total")
    share = Step(total.value, "/", people, f"they are shared among {people} {group}")
    return Problem(asked, (total, share), f"each of them gets {{}} {things}")


def change_money(rng: random.Random) -> Problem:
    """A purchase, and the money that is left."""
    name, (thing, things) = rng.choice(NAMES), rng.choice(THINGS)
    count, price = rng.randint(2, 9), rng.randint(2, 10)
    money = rng.choice([note for note in (20, 50, 100) if note > count * price])
    asked = (
        f"At the {rng.choice(PLACES)}, one {thing} costs {price} dollars. {name} buys {count} {things} and pays with "
        f"{money} dollars. How much money does {name} get back?"
    )
    cost = Step(count, "*", price, f"this is the price of {count} {things}")
    return Problem(asked, (cost, Step(money, "-", cost.value, "this is the change")), f"{name} gets {{}} dollars back")


def together(rng: random.Random) -> Problem:
    """One has more or fewer than the other, both are added."""
    (name, other), (_, things) = rng.sample(NAMES, 2), rng.choice(THINGS)
    own, difference = rng.randint(5, 30), rng.randint(2, 12)
    more = rng.random() < 0.6 or difference >= own
    word, op = ("more", "+") if more else ("fewer", "-")
    asked = (
        f"{name} has {own} {things}. {other} has {difference} {word} than {name}. "
        f"How many {things} do they have together?"
    )
    second = Step(own, op, difference, f"this is what {other} has")
    return Problem(asked, (second, Step(own, "+", second.value, "both are added")), f"they have {{}} {things} together")


def reading(rng: random.Random) -> Problem:
    """A rate, a time, and what remains."""
    name = rng.choice(NAMES)
    pages, days = rng.randint(3, 12), rng.randint(2, 7)
    book = pages * days + rng.randint(5, 60)
    asked = (
        f"{name} reads {pages} pages every day. The book has {book} pages. How many pages are left after {days} days?"
    )
    done = Step(pages, "*", days, f"{name} reads this much in {days} days")
    return Problem(asked, (done, Step(book, "-", done.value, "the rest of the book remains")), "{} pages are left")


KINDS: Final[tuple[Callable[[random.Random], Problem], ...]] = (
    running_total, running_total, packs, sharing, change_money, together, reading,
)  # fmt: skip
GAINS: Final = (
    ("buys {n} more at the {place}", "{n} are bought"),
    ("gets {n} as a present", "{n} come as a present"),
    ("finds {n} in the {place}", "{n} are found"),
)
LOSSES: Final = (
    ("gives {n} to a friend", "{n} are given away"),
    ("loses {n} in the {place}", "{n} are lost"),
    ("sells {n} at the {place}", "{n} are sold"),
)


# --- layouts of the answer -------------------------------------------------------------------------------------------


def prose(rng: random.Random, problem: Problem) -> str:
    """Sentences, and a last one with the answer."""
    links = [
        rng.choice(("First", "To start")),
        *(rng.choice(("Then", "Next", "After that")) for _ in problem.steps[1:]),
    ]
    lines = [f"{link}, {step.meaning}, so {step.sum}." for link, step in zip(links, problem.steps, strict=True)]
    ending = problem.answer.format(problem.steps[-1].value)
    return " ".join([*lines, rng.choice((f"So {ending}.", f"The answer is {problem.steps[-1].value}."))])


def numbered(rng: random.Random, problem: Problem) -> str:
    """One numbered line a step."""
    opening = rng.choice(("Let us solve it step by step.", "We go step by step.", "Here are the steps."))
    lines = [f"Step {place}: {step.sum} ({step.meaning})" for place, step in enumerate(problem.steps, 1)]
    return "\n".join([opening, *lines, f"Answer: {problem.steps[-1].value}"])


def bullets(rng: random.Random, problem: Problem) -> str:
    """A list, then the sentence that answers."""
    lines = [f"- {step.sum}, because {step.meaning}" for step in problem.steps]
    ending = problem.answer.format(problem.steps[-1].value)
    return "\n".join([*lines, f"{rng.choice(('So', 'This means that'))} {ending}."])


def short(rng: random.Random, problem: Problem) -> str:
    """The calculation alone and the answer."""
    sums = ", ".join(step.sum for step in problem.steps)
    return f"{sums}. {rng.choice(('Answer', 'Result'))}: {problem.steps[-1].value}"


Layout = Callable[[random.Random, Problem], str]
LAYOUTS: Final[tuple[Layout, ...]] = (prose, numbered)
STYLES: Final[tuple[tuple[str, Layout | None], ...]] = (
    ("", None),
    ("", None),
    ("Show your work.", None),
    ("Solve it step by step.", numbered),
    ("Explain your answer.", prose),
    ("Use a list.", bullets),
    ("Keep it short.", short),
)
