"""Timing: at which layers does a drafter still profit from hearing of the correct prefix?

One rule: the schedules differ in nothing but which layers read the features of the correct tokens; the others read
those of the draft's own predictions, and the first layer always does, but for "all". Source: DSpine
(arXiv 2609.36173): place 7 of 15 becomes the new anchor, its token correct; the six places before it are filled with
the draft's predictions or with the correct tokens; the target encodes both; what counts is the run of correct tokens
at places 8 to 15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from dspine.evaluate.results import ResultFile
from dspine.interval import bootstrap
from dspine.probe.drafting import Contexts
from dspine.probe.subject import Subject, each_sequence, padded
from dspine.train.responses import TrainingSequence


def measure(subject: Subject, file: ResultFile) -> None:
    """Fill a file of results: a line a sequence, then one a schedule with its gain over predictions in every layer."""
    layers = len(subject.drafter.backbone.layers)
    place = new_anchor(subject.drafter.candidates)
    lines = each_sequence(file, subject, "timing", lambda sequence: _runs(subject, sequence, place))
    file.add(_schedule(name, lines, layers) for name in schedules(layers))


def new_anchor(candidates: int) -> int:
    """The place that becomes the new anchor: 7 of 15."""
    return max(2, (candidates - 1) // 2)


def schedules(layers: int) -> dict[str, tuple[int, ...]]:
    """The layers, from 1, that read the correct prefix, by name: none, each alone, pairs with the last, from one on."""
    found: dict[str, tuple[int, ...]] = {"none": ()}
    for first in range(2, layers + 1):
        for chosen in ((first,), (first, layers), tuple(range(first, layers + 1))):
            chosen = tuple(dict.fromkeys(chosen))
            found.setdefault("+".join(map(str, chosen)), chosen)
    return found | {"all": tuple(range(1, layers + 1))}


def _runs(subject: Subject, sequence: TrainingSequence, place: int) -> dict[str, Any]:
    """How many tokens are correct in a row behind the new anchor, summed over the blocks of a sequence."""
    drafter, anchors, ids = subject.drafter, subject.anchors(sequence), sequence.ids
    layers = len(drafter.backbone.layers)
    [whole] = subject.features([ids])
    device = whole.device
    tokens = torch.tensor(ids, device=device)
    context = whole[: max(anchors)].expand(len(anchors), -1, -1)
    predicted = Contexts(drafter, [context], anchors).draft(tokens[anchors]).tolist()
    imagined = [
        [*ids[: anchor + 1], *said[: place - 1]] for anchor, said in zip(anchors, predicted, strict=True)
    ]  # the new anchor lies behind: its features do not exist yet
    begins = [anchor + place for anchor in anchors]
    sources = [padded(subject.features(imagined)), padded(whole[:begin] for begin in begins)]
    width = drafter.candidates - place
    labels = torch.stack([tokens[begin + 1 : begin + 1 + width] for begin in begins])
    contexts, correct = Contexts(drafter, sources, begins), {}
    for name, chosen in schedules(layers).items():
        contexts.read([int(layer + 1 in chosen) for layer in range(layers)])
        drafted = contexts.draft(tokens[begins])[:, :width]
        correct[name] = int((drafted == labels).long().cumprod(-1).sum())
    differing = sum(
        said[: place - 1] != ids[anchor + 1 : anchor + place] for anchor, said in zip(anchors, predicted, strict=True)
    )
    return {"blocks": len(anchors), "place": place, "differing": differing, "correct": correct}


def _schedule(name: str, lines: Sequence[dict[str, Any]], layers: int) -> dict[str, Any]:
    """A schedule over all sequences; its gain is a share of what predictions in every layer give."""
    runs = [(line["correct"][name], line["correct"]["none"]) for line in lines]
    blocks = sum(line["blocks"] for line in lines)
    ours, base = sum(run for run, _ in runs), sum(run for _, run in runs)
    ends = bootstrap(runs)
    return {
        "key": f"schedule/{name}",
        "kind": "schedule",
        "schedule": name,
        "layers": list(schedules(layers)[name]),
        "correct": ours / blocks,
        "gain": ours / base - 1 if base else None,
        "interval": {end: value - 1 for end, value in asdict(ends).items()},
        "blocks": blocks,
        "differing": sum(line["differing"] for line in lines),
        "place": lines[0]["place"],
    }
