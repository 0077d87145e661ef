"""Readers: at which layer of a drafter can the token of a place be read already?

One rule: a reader is weak and chosen on answers that it was not fitted on, and judged on a third part. Source: DSpine
(arXiv 2609.36173), readout: a low-rank map in front of the target's head E,

    q_l = softmax(E [n(h_l) + U_l V_l n(h_l) + b_l]),   n = RMS norm without scale, rank 64
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dspine.errors import DataError
from dspine.evaluate.results import ResultFile
from dspine.interval import bootstrap
from dspine.probe.states import blocks_of, layer_states
from dspine.probe.subject import Subject
from dspine.progress import Meter
from dspine.train.blocks import keyed_random
from dspine.train.responses import TrainingSequence

PARTS = ("fit", "fit", "fit", "choose", "judge")  # of every five answers
GROUPS = ((1, 4), (5, 8), (9, 15))
LOOKS = 10  # how often a reader is looked at while it is fitted
OWN = "drafter"  # the line of the drafter's own output
ROWS = 4096  # of the head's logits at once


@dataclass(frozen=True)
class Fit:
    """How a reader is fitted: AdamW without decay, the learning rate falling to 0."""

    rank: int = 64
    steps: int = 400
    rows: int = 256
    learning_rate: float = 3e-3
    seed: int = 0


class Reader(nn.Module):
    """n + U V n + b, in front of the target's head. At first it is n itself."""

    def __init__(self, width: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, width, generator=generator) / width**0.5)
        self.up = nn.Parameter(torch.zeros(width, rank))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, state: Tensor) -> Tensor:
        """(..., d) → (..., d)."""
        n = F.rms_norm(state.float(), state.shape[-1:], eps=1e-6)
        return n + F.linear(F.linear(n, self.down), self.up) + self.bias


@dataclass(frozen=True)
class Rows:
    """Places of blocks of one part of the answers.

    states: L of (R, d); drafted, labels, places (from 1), sequences: (R,); drafted is the likeliest token of the
        drafter's ordinary output.
    """

    states: list[Tensor]
    drafted: Tensor
    labels: Tensor
    places: Tensor
    sequences: Tensor


def measure(subject: Subject, head: Tensor, fit: Fit, file: ResultFile) -> None:
    """Fill a file of results: one line a layer, and one for what the drafter itself gives; finished layers stay.

    Args:
        head: E, the target's head (V, d).

    Raises:
        DataError: fewer than five answers are long enough.
    """
    layers = len(subject.drafter.backbone.layers)
    missing = [layer for layer in range(layers) if f"layer/{layer + 1}" not in file.lines]
    if not missing and OWN in file.lines:
        return
    parts = _gather(subject)
    judged = parts["judge"]
    device = subject.drafter.backbone.norm.weight.device
    rows = {part: len(found.labels) for part, found in parts.items()}
    with Meter("readers", len(missing), "layers") as meter:
        for done, layer in enumerate(missing):
            reader, step, chosen = fitted(
                parts["fit"].states[layer],
                parts["fit"].labels,
                parts["choose"].states[layer],
                parts["choose"].labels,
                head,
                fit,
                device,
            )
            read = likeliest(reader, judged.states[layer], head, device)
            about = {"layer": layer + 1, "step": step, "chosen_by": chosen, "rows": rows}
            file.add([{"key": f"layer/{layer + 1}", "kind": "layer", **about, **_accuracy(read, judged)}])
            meter.update(done + 1, done + 1)
    file.add([{"key": OWN, "kind": "drafter", "rows": rows, **_accuracy(judged.drafted, judged)}])


def fitted(
    states: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, head: Tensor, fit: Fit, device: torch.device
) -> tuple[Reader, int, float]:
    """A reader fitted on states (R, d) and labels (R,), the best of several looks on the others.

    Returns:
        it, the step it is of, and its accuracy on the others.
    """
    generator = torch.Generator().manual_seed(fit.seed)
    reader = Reader(states.shape[1], fit.rank, generator).to(device)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=fit.learning_rate, weight_decay=0.0)
    best, at, accuracy = deepcopy(reader.state_dict()), 0, -1.0
    wide = head.detach().float()
    for step in range(1, fit.steps + 1):
        optimizer.param_groups[0]["lr"] = fit.learning_rate * (1 - (step - 1) / fit.steps)
        drawn = torch.randint(len(labels), (min(fit.rows, len(labels)),), generator=generator)
        logits = F.linear(reader(states[drawn].to(device)), wide)
        optimizer.zero_grad()
        F.cross_entropy(logits, labels[drawn].to(device)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % max(1, fit.steps // LOOKS) == 0 or step == fit.steps:
            found = (likeliest(reader, others, head, device) == other_labels).float().mean().item()
            if found > accuracy:
                best, at, accuracy = deepcopy(reader.state_dict()), step, found
    reader.load_state_dict(best)
    return reader, at, accuracy


@torch.no_grad()
def likeliest(reader: Reader, states: Tensor, head: Tensor, device: torch.device) -> Tensor:
    """The token that a reader reads of each state (R, d): (R,), on the CPU."""
    wide = head.detach().float()
    parts = [F.linear(reader(part.to(device)), wide).argmax(-1).cpu() for part in torch.split(states, ROWS)]
    return torch.cat(parts)


def _gather(subject: Subject) -> dict[str, Rows]:
    sequences = subject.usable()
    if len(sequences) < len(PARTS):
        raise DataError(
            f"{len(sequences)} answers are long enough; a reader needs {len(PARTS)} to be fitted, chosen and judged",
            "Ask more prompts.",
        )
    order = keyed_random("readers", subject.seed).permutation(len(sequences))
    gathered: dict[str, list[Rows]] = {part: [] for part in PARTS}
    with Meter("states", len(sequences), "answers") as meter:
        for done, number in enumerate(order.tolist()):
            gathered[PARTS[done % len(PARTS)]].append(_rows(subject, sequences[number], number))
            meter.update(done + 1, done + 1)
    return {part: _joined(rows) for part, rows in gathered.items()}


def _rows(subject: Subject, sequence: TrainingSequence, number: int) -> Rows:
    drafter = subject.drafter
    [features] = subject.features([sequence.ids])
    anchors, tokens = blocks_of(sequence.ids, subject.anchors(sequence), drafter.candidates, features.device)
    states, hidden = layer_states(drafter, features, anchors, tokens)
    places = torch.arange(1, drafter.candidates + 1).expand(len(anchors), -1).flatten()
    with torch.no_grad():
        drafted = drafter.tables.top(hidden, 1)[1][..., 0]
    return Rows(
        states=[state.flatten(0, 1).cpu() for state in states],
        drafted=drafted.flatten().cpu(),
        labels=tokens[:, 1:].flatten().cpu(),
        places=places,
        sequences=torch.full_like(places, number),
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    return Rows(
        states=[torch.cat(states) for states in zip(*(part.states for part in parts), strict=True)],
        drafted=torch.cat([part.drafted for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        places=torch.cat([part.places for part in parts]),
        sequences=torch.cat([part.sequences for part in parts]),
    )


def _accuracy(read: Tensor, rows: Rows) -> dict[str, Any]:
    """Right ones by place, and by group of places with an interval over answers."""
    right = read == rows.labels
    last = int(rows.places.max())
    places = [
        {"place": place, "right": int(right[rows.places == place].sum()), "rows": int((rows.places == place).sum())}
        for place in range(1, last + 1)
    ]
    return {"places": places, "groups": [_group(right, rows, *ends) for ends in groups(last)]}


def groups(last: int) -> list[tuple[int, int]]:
    """The groups of places, first and last, of a block of `last` candidates."""
    return [(begin, last if end == GROUPS[-1][1] else min(end, last)) for begin, end in GROUPS if begin <= last]


def _group(right: Tensor, rows: Rows, begin: int, end: int) -> dict[str, Any]:
    inside = (rows.places >= begin) & (rows.places <= end)
    pairs = [
        (float(right[inside & (rows.sequences == number)].sum()), float((inside & (rows.sequences == number)).sum()))
        for number in torch.unique(rows.sequences)
    ]
    accuracy = float(right[inside].float().mean())
    return {"from": begin, "to": end, "accuracy": accuracy, "interval": asdict(bootstrap(pairs))}
