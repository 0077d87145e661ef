"""Predecessor: how much of a token's draft hangs on the token before it, and where in depth it has to enter.

One rule: the predecessor itself is the new anchor, so that its token can be exchanged while all else stays. Source:
DSpine (arXiv 2609.36173): at three places of the block the history before the predecessor is correct or predicted, and
so is the predecessor; what counts is whether its successor comes out right. For entry, the block begins with the
predicted predecessor, and some layers attend to the keys and values that the correct one has there.

Of a drafter that hears of its anchor otherwise than by attention too (DSpine by its code, DSpark by its head), entry
tells the part of attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from dspine.evaluate.results import ResultFile
from dspine.interval import bootstrap
from dspine.probe.drafting import Contexts
from dspine.probe.subject import Subject, each_sequence, padded
from dspine.train.responses import TrainingSequence

CONTENTS = ("correct", "predicted")


def measure(subject: Subject, file: ResultFile) -> None:
    """Fill a file of results: a line a sequence, then one a place and content, and one a place and entry."""
    layers, places = len(subject.drafter.backbone.layers), successors(subject.drafter.candidates)
    lines = each_sequence(file, subject, "predecessor", lambda sequence: _right(subject, sequence, places))
    file.add([*_contents(lines, places), *_entries(lines, places, layers)])


def successors(candidates: int) -> list[int]:
    """The places whose token is looked at: 4, 8 and 12 of 15. There is a history before each predecessor."""
    return sorted({min(candidates, max(3, part * (candidates + 1) // 4)) for part in (1, 2, 3)})


def entries(layers: int) -> dict[str, tuple[int, ...]]:
    """The layers, from 1, that attend to the correct predecessor, by name: none, each, each with the last, all."""
    found: dict[str, tuple[int, ...]] = {"none": ()}
    for layer in range(1, layers + 1):
        found[str(layer)] = (layer,)
    for layer in range(1, layers):
        found[f"{layer}+{layers}"] = (layer, layers)
    return found | {"all": tuple(range(1, layers + 1))}


def _right(subject: Subject, sequence: TrainingSequence, places: Sequence[int]) -> dict[str, Any]:
    """Blocks of a sequence whose successor is right, by place and content and by place and entry."""
    drafter, anchors, ids = subject.drafter, subject.anchors(sequence), sequence.ids
    [whole] = subject.features([ids])
    tokens = torch.tensor(ids, device=whole.device)
    context = whole[: max(anchors)].expand(len(anchors), -1, -1)
    predicted = Contexts(drafter, [context], anchors).draft(tokens[anchors])
    layers = len(drafter.backbone.layers)
    counts: dict[str, int] = {}
    for place in places:
        begins = [anchor + place - 1 for anchor in anchors]  # where the predecessor lies
        goal = tokens[[begin + 1 for begin in begins]]
        said = [
            [*ids[: anchor + 1], *own[: place - 2]] for anchor, own in zip(anchors, predicted.tolist(), strict=True)
        ]
        histories = {
            "correct": padded(whole[:begin] for begin in begins),
            "predicted": padded(subject.features(said)),
        }
        for history, source in histories.items():
            contexts = Contexts(drafter, [source], begins)
            right = contexts.draft(tokens[begins])[:, 0] == goal
            counts[f"{place}/{history}/correct"] = int(right.sum())
            for name, chosen in entries(layers).items():
                drafted = contexts.draft_with(predicted[:, place - 2], [layer - 1 for layer in chosen])[:, 0]
                counts[f"{place}/{history}/entry/{name}"] = int((drafted == goal).sum())
            counts[f"{place}/{history}/predicted"] = counts[f"{place}/{history}/entry/none"]
    return {"blocks": len(anchors), "right": counts}


def _contents(lines: Sequence[dict[str, Any]], places: Sequence[int]) -> Iterator[dict[str, Any]]:
    for place in places:
        for history in CONTENTS:
            for content in CONTENTS:
                key = f"{place}/{history}/{content}"
                where = {"place": place, "history": history, "predecessor": content}
                yield {"key": f"content/{key}", "kind": "content", **where, **_accuracy(lines, key)}


def _entries(lines: Sequence[dict[str, Any]], places: Sequence[int], layers: int) -> Iterator[dict[str, Any]]:
    for place in places:
        for history in CONTENTS:
            for name, chosen in entries(layers).items():
                key = f"{place}/{history}/entry/{name}"
                where = {"place": place, "history": history, "entry": name, "layers": list(chosen)}
                yield {"key": f"entry/{place}/{history}/{name}", "kind": "entry", **where, **_accuracy(lines, key)}


def _accuracy(lines: Sequence[dict[str, Any]], key: str) -> dict[str, Any]:
    pairs = [(line["right"][key], line["blocks"]) for line in lines]
    right, blocks = (sum(column) for column in zip(*pairs, strict=True))
    return {"accuracy": right / blocks, "interval": asdict(bootstrap(pairs)), "right": right, "blocks": blocks}
