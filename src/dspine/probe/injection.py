"""Inside DSpine: how far its gates are open, how near its features are to the right code, how far a message travels.

One rule: what is looked at is the pass over a block as it is drafted; no place hears a correct token but the anchor.
Source: DSpine (arXiv 2609.36173), injection: after l layers a place has heard from up to l predecessors.

Influence of place i on place j after layer l: the first layer's state of place i is exchanged for that of another
block, and |h' - h| / |h| of place j is what comes of it; as the network is, and with attention held at what it was, so
that the injection alone carries the news.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import DraftLayer
from dspine.drafter.dspine import DSpine
from dspine.drafter.states import BlockStates
from dspine.errors import ConfigError
from dspine.evaluate.results import ResultFile
from dspine.probe.states import blocks_of, changing, outputs
from dspine.probe.subject import Subject, each_sequence
from dspine.train.responses import TrainingSequence

WAYS = ("injection", "altogether")


def measure(subject: Subject, file: ResultFile) -> None:
    """Fill a file of results: a line a sequence, then one a layer for gates and cosines, and one a layer and way.

    Raises:
        ConfigError: the drafter is no DSpine, or one without gates.
    """
    drafter = subject.drafter
    if not isinstance(drafter, DSpine):
        raise ConfigError("this drafter has no injection to look into", "Give a DSpine drafter.")
    lines = each_sequence(file, subject, "injection", lambda sequence: _look(subject, drafter, sequence))
    for line in lines:
        assert line["blocks"]
    file.add(_layer(lines, layer) for layer in range(drafter.config.num_hidden_layers))
    if any(line["influence"] for line in lines):
        file.add(
            _influence([line for line in lines if line["influence"]], way, layer)
            for way in WAYS
            for layer in range(drafter.config.num_hidden_layers)
        )


def _look(subject: Subject, drafter: DSpine, sequence: TrainingSequence) -> dict[str, Any]:
    [features] = subject.features([sequence.ids])
    found = blocks_of(sequence.ids, subject.anchors(sequence), drafter.candidates, features.device)
    clean, before = _pass(drafter, features, *found)
    anchors, tokens = found
    seen: dict[str, Any] = {
        "blocks": len(anchors),
        "gate": _rounded(_gates(drafter, before, tokens[:, 0])),
        "cosine": _rounded(_cosines(drafter, clean, tokens[:, 1:])),
        "influence": None,
    }
    if len(anchors) > 1:  # the state of another block is needed
        spread = influence(drafter, features, *found)
        seen["influence"] = {way: _rounded(by_distance(each)) for way, each in spread.items()}
    return seen


@torch.no_grad()
def influence(drafter: DSpine, features: Tensor, anchors: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """By way: (M, L, M), relative change at layer l and place j for an exchange at place i, mean over A ≥ 2 blocks."""
    layers = list(drafter.backbone.layers)
    attention: list[nn.Module] = [cast(DraftLayer, layer).self_attn.o_proj for layer in layers]
    mixed: list[Tensor] = []

    def keep(_: int, out: Tensor) -> Tensor:
        mixed.append(out)
        return out

    with changing(attention, keep):
        clean, _ = _pass(drafter, features, anchors, tokens)
    found = {}
    for way in WAYS:
        held = attention if way == "injection" else []
        spread = []
        for place in range(1, drafter.candidates + 1):

            def exchange(_: int, out: Tensor, place: int = place) -> Tensor:
                blocks = out.reshape(len(anchors), drafter.block_size, -1).clone()
                blocks[:, place] = blocks[:, place].roll(1, dims=0)
                return blocks.view(out.shape)

            with changing(held, lambda layer, _: mixed[layer]), changing(layers[:1], exchange):
                other, _ = _pass(drafter, features, anchors, tokens)
            spread.append(torch.stack([_change(h, o) for h, o in zip(clean.heard, other.heard, strict=True)]))
        found[way] = torch.stack(spread)
    return found


def by_distance(spread: Tensor) -> Tensor:
    """(M, L, M) of places i and j → (L, M): mean over pairs that are j - i = 0..M-1 apart."""
    return torch.stack(
        [spread.diagonal(offset=distance, dim1=0, dim2=2).mean(-1) for distance in range(spread.shape[0])], dim=1
    )


def _pass(drafter: DSpine, features: Tensor, anchors: Tensor, tokens: Tensor) -> tuple[BlockStates, list[Tensor]]:
    """The states (A, M, ·) of blocks, and u_l (A, M, d) of every layer: before its injection."""
    with torch.no_grad(), outputs(drafter) as seen:
        length = torch.tensor([len(features)], device=features.device)
        states = drafter.blocks(features[None], length, anchors[None], tokens[None])
    before = [state.reshape(len(anchors), drafter.block_size, -1)[:, 1:] for state in seen]
    return _first(states), before


def _first(states: BlockStates) -> BlockStates:
    """Of the one sequence."""
    return BlockStates(
        hidden=states.hidden[0],
        last=states.last[0],
        farther=None if states.farther is None else states.farther[0],
        heard=[heard[0] for heard in states.heard],
        readouts=[readout[0] for readout in states.readouts],
    )


@torch.no_grad()
def _gates(drafter: DSpine, before: Sequence[Tensor], anchors: Tensor) -> Tensor | None:
    """Mean openness (L, M) over blocks and message channels; NaN where nothing is injected; None without gates."""
    if not (drafter.config.gated and drafter.config.injected):
        return None
    found = []
    for layer, state in enumerate(before):
        readout = drafter.injection.readout(layer, state)
        code = drafter.codes[anchors].to(readout.dtype).unsqueeze(1)
        openness = drafter.injection.openness(readout, torch.cat((code, readout[:, :-1]), dim=1)).mean(-1).mean(0)
        heard = torch.full_like(openness, layer in drafter.config.injected, dtype=torch.bool)
        if drafter.config.predecessor == "none":
            heard[1:] = False
        found.append(openness.masked_fill(~heard, torch.nan))
    return torch.stack(found)


@torch.no_grad()
def _cosines(drafter: DSpine, states: BlockStates, labels: Tensor) -> Tensor:
    """Cosine (L, M) of f_l(h_l) and the right token's code, mean over blocks."""
    goal = drafter.codes[labels]
    return torch.stack([(readout.float() * goal.float()).sum(-1).mean(0) for readout in states.readouts])


def _change(clean: Tensor, other: Tensor) -> Tensor:
    """|h' - h| / |h| of each place (A, M, d) → (M,), mean over blocks."""
    norm = torch.linalg.vector_norm
    change: Tensor = norm(other - clean, dim=-1) / norm(clean, dim=-1).clamp_min(1e-12)
    return change.mean(0)


def _rounded(values: Tensor | None) -> list[list[float | None]] | None:
    if values is None:
        return None
    return [[None if value != value else round(value, 6) for value in row] for row in values.tolist()]


def _layer(lines: Sequence[dict[str, Any]], layer: int) -> dict[str, Any]:
    blocks = sum(line["blocks"] for line in lines)
    values = {
        name: None if lines[0][name] is None else _mean([(line[name][layer], line["blocks"]) for line in lines])
        for name in ("gate", "cosine")
    }
    return {"key": f"layer/{layer + 1}", "kind": "layer", "layer": layer + 1, "blocks": blocks, **values}


def _influence(lines: Sequence[dict[str, Any]], way: str, layer: int) -> dict[str, Any]:
    """By distance, from 0."""
    values = _mean([(line["influence"][way][layer], line["blocks"]) for line in lines])
    blocks = sum(line["blocks"] for line in lines)
    key = f"influence/{way}/{layer + 1}"
    return {"key": key, "kind": "influence", "way": way, "layer": layer + 1, "distances": values, "blocks": blocks}


def _mean(rows: Sequence[tuple[Sequence[float | None], int]]) -> list[float | None]:
    """Rows of numbers weighed by blocks; None stays."""
    total = sum(blocks for _, blocks in rows)
    columns = zip(*(values for values, _ in rows), strict=True)
    return [
        None
        if None in column
        else sum(cast(float, value) * blocks for value, (_, blocks) in zip(column, rows, strict=True)) / total
        for column in columns
    ]
