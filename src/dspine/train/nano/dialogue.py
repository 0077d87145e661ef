"""Short dialogues: facts, lists, definitions, preferences, rewriting, remembering.

One rule: a dialogue is a list of (user, assistant) turns; what a later turn asks can be read in an earlier one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

from dspine.train.nano import words

Turns = list[tuple[str, str]]


def dialogue(rng: random.Random) -> Turns:
    """One dialogue of one to three turns."""
    return rng.choice(KINDS)(rng)


def _asked(rng: random.Random, question: str) -> str:
    """The question with or without a polite frame, which the answer does not depend on."""
    name = rng.choice(words.NAMES)
    frames = ("{q}", "{q}", "Hi! {q}", "Please help me. {q}", "I have a question. {q}", "{n} wants to know this. {q}",
              "My friend {n} asked me this. {q}", "{q} I am asking for {n}.")  # fmt: skip
    return rng.choice(frames).format(q=question, n=name)


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def capital(rng: random.Random) -> Turns:
    """A capital, sometimes a second one."""
    (country, city), (second, other) = rng.sample(words.CAPITALS, 2)
    reply = rng.choice(("The capital of {c} is {t}.", "It is {t}. {t} is the capital of {c}."))
    turns = [(_asked(rng, f"What is the capital of {country}?"), reply.format(c=country, t=city))]
    if rng.random() < 0.4:
        turns.append((f"And what about {second}?", reply.format(c=second, t=other)))
    return turns


def animal(rng: random.Random) -> Turns:
    """Facts about an animal, in two or three sentences."""
    name, group, sound, legs, home = rng.choice(words.ANIMALS)
    facts = [f"It {sound}.", f"It lives in {home}.", f"It has {legs or 'no'} legs."]
    rng.shuffle(facts)
    reply = f"{_article(name).capitalize()} is {_article(group)}. " + " ".join(facts[: rng.randint(1, 3)])
    return [(_asked(rng, rng.choice((f"What is {_article(name)}?", f"Tell me about the {name}."))), reply)]


def listing(rng: random.Random) -> Turns:
    """Some members of a category, as a sentence, bullets or numbers."""
    kind, members = rng.choice(words.LISTS)
    count = rng.randint(2, 5)
    chosen = rng.sample(members, count)
    number = ("two", "three", "four", "five")[count - 2]
    form = rng.randrange(3)
    request = (
        f"Name {number} {kind}.",
        f"Give me a list of {number} {kind}.",
        f"Write a numbered list of {number} {kind}.",
    )
    if form == 0:
        reply = f"{rng.choice(('Sure! ', ''))}Here are {number} {kind}: {', '.join(chosen[:-1])} and {chosen[-1]}."
    elif form == 1:
        reply = f"Here are {number} {kind}:\n" + "\n".join(f"- {word}" for word in chosen)
    else:
        reply = "\n".join(f"{place}. {word}" for place, word in enumerate(chosen, 1))
    return [(_asked(rng, request[form]), reply)]


def definition(rng: random.Random) -> Turns:
    """What a word means."""
    term, meaning, more = rng.choice(words.DEFINITIONS)
    question, reply = rng.choice((
        (f"What is {term}?", f"{term.capitalize()} is {meaning}."),
        (f"Explain {term} in one sentence.", f"{term.capitalize()} is {meaning}, and {more}."),
        (f"Define {term} and add one fact.", f"Definition: {meaning}.\nFact: {more}."),
    ))  # fmt: skip
    return [(_asked(rng, question), reply)]


def preference(rng: random.Random) -> Turns:
    """A hobby, a suggestion, and a question about what was said."""
    name = rng.choice(words.NAMES)
    hobby, idea, action = rng.choice(words.HOBBIES)
    food = rng.choice(words.FOODS)
    opening = rng.choice(
        (f"My name is {name}. I like {hobby} and {food}.", f"I am {name}, and I love {hobby} and {food}.")
    )
    suggestion = rng.choice((
        f"Nice to meet you, {name}! If you like {hobby}, try {idea}.",
        f"Hello {name}! {hobby.capitalize()} is a good hobby. You could {action}.",
        f"Hi {name}! You could {action}, and have some {food} after that.",
    ))  # fmt: skip
    turns = [(f"{opening} What should I do today?", suggestion)]
    later = [
        ("What is my name?", f"Your name is {name}."),
        ("Which food do I like?", f"You like {food}."),
        ("What is my hobby?", f"Your hobby is {hobby}."),
        ("Give me another idea.", f"You could also {action}."),
    ]
    return turns + rng.sample(later, rng.randint(0, 2))


def opposite(rng: random.Random) -> Turns:
    """Opposites, one or two."""
    (word, against), (second, other) = rng.sample(words.OPPOSITES, 2)
    if rng.random() < 0.5:
        return [(_asked(rng, f"What is the opposite of {word}?"), f"The opposite of {word} is {against}.")]
    question = f"Give me the opposites of {word} and {second}."
    return [(_asked(rng, question), f"The opposite of {word} is {against}, and the opposite of {second} is {other}.")]


def rewrite(rng: random.Random) -> Turns:
    """A sentence and a rewriting task."""
    name, time = rng.choice(words.NAMES), rng.choice(words.TIMES)
    base, past, third, what = rng.choice(words.VERBS)
    sentence = f"{name} {third} {what} {time}."
    tasks = (
        ("Put this sentence into the past tense", f"{name} {past} {what} {time}."),
        ("Turn this sentence into a question", f"Does {name} {base} {what} {time}?"),
        ("Make this sentence negative", f"{name} does not {base} {what} {time}."),
        ("Write this sentence in the future", f"{name} will {base} {what} {time}."),
        ("Write this sentence in capital letters", sentence.upper()),
        ("Repeat this sentence twice", f"{sentence} {sentence}"),
        ("Rewrite this sentence as a polite request", f"{name}, could you please {base} {what} {time}?"),
    )
    task, reply = rng.choice(tasks)
    turns = [(f"{task}: {sentence}", reply)]
    if rng.random() < 0.3:
        task, reply = rng.choice(tasks)
        turns.append((f"Now do this with the same sentence. {task}.", reply))
    return turns


def record(rng: random.Random) -> Turns:
    """Facts about a person, turned into JSON or into bullets."""
    name, city = rng.choice(words.NAMES), rng.choice(words.CAPITALS)[1]
    age, food = rng.randint(6, 79), rng.choice(words.FOODS)
    said = f"{name} is {age} years old, lives in {city} and likes {food}."
    if rng.random() < 0.5:
        fields = {"name": name, "age": age, "city": city, "food": food}
        return [(f"Turn this into JSON: {said}", f"```json\n{json.dumps(fields, indent=2)}\n```")]
    return [(f"Summarize this as a list: {said}", f"- Name: {name}\n- Age: {age}\n- City: {city}\n- Food: {food}")]


def planning(rng: random.Random) -> Turns:
    """Errands put on a list in the order in which they were said."""
    chosen = rng.sample(words.ERRANDS, rng.randint(2, 4))
    time = rng.choice(words.TIMES)
    said = ", ".join(chosen[:-1]) + f" and {chosen[-1]}"
    opening = rng.choice((f"Here is your plan {time}:", f"Sure! This is your list {time}:"))
    reply = "\n".join([opening, *(f"{place}. {errand.capitalize()}" for place, errand in enumerate(chosen, 1))])
    return [(f"I have to {said} {time}. Make a plan for me.", f"{reply}\nGood luck!")]


def counting(rng: random.Random) -> Turns:
    """Numbers, days or months in order."""
    form = rng.randrange(3)
    if form == 0:
        start, stride = rng.randint(1, 30), rng.choice((1, 1, 2, 5, 10))
        numbers = [start + stride * place for place in range(rng.randint(4, 9))]
        question = f"Count from {numbers[0]} to {numbers[-1]}" + (f" in steps of {stride}." if stride > 1 else ".")
        return [(_asked(rng, question), ", ".join(map(str, numbers)))]
    names, kind = (words.DAYS, "day") if form == 1 else (words.MONTHS, "month")
    place, count = rng.randrange(len(names)), rng.randint(1, 4)
    after = [names[(place + step) % len(names)] for step in range(1, count + 1)]
    if count == 1:
        return [(_asked(rng, f"Which {kind} comes after {names[place]}?"), f"{after[0]} comes after {names[place]}.")]
    return [
        (_asked(rng, f"Which {count} {kind}s come after {names[place]}?"), "\n".join(f"- {name}" for name in after))
    ]


def description(rng: random.Random) -> Turns:
    """A small free text about a thing: the answer that has most ways to go on."""
    adjective, (thing, _), place = rng.choice(words.ADJECTIVES), rng.choice(words.THINGS), rng.choice(words.PLACES)
    name, (_, past, _, what) = rng.choice(words.NAMES), rng.choice(words.VERBS)
    closing = rng.choice(("Everybody was happy.", "It was a good day.", "Nobody knew why.", "The sun was bright."))
    found = rng.choice(("found", "saw", "lost", "wanted"))
    middle = f"Then {rng.choice(words.NAMES)} {past} {what}."
    time = rng.choice(words.TIMES)
    reply = f"{time[0].upper()}{time[1:]}, {name} {found} a {adjective} {thing} at the {place}. {middle} {closing}"
    return [(f"Write a short story about {name} and a {adjective} {thing}.", reply)]


KINDS: Final[tuple[Callable[[random.Random], Turns], ...]] = (
    capital, animal, listing, definition, preference, opposite, rewrite, record, planning, counting, description,
)  # fmt: skip
