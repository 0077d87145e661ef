"""Inside DSpine: messages travel one place a layer and no farther, gates and cosines are what was planted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.blocks import VOCAB, small_drafter
from tests.support.parallel import small

from dspine.errors import ConfigError
from dspine.evaluate.results import PROBE, ResultFile
from dspine.probe import injection
from dspine.probe.subject import Subject, probed
from dspine.train.responses import TrainingSequence

LAYERS, PLACES = 3, 5


def on(drafter, answers: int = 1) -> Subject:
    """The drafter on random answers with two blocks each."""
    draws = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCAB - 1, (answers, 20), generator=draws).tolist()
    table = torch.randn(VOCAB, drafter.config.feature_size, generator=draws, dtype=drafter.dtype)
    sequences = [TrainingSequence(f"{n}", each, [False] * 4 + [True] * 16) for n, each in enumerate(ids)]
    return Subject(drafter, lambda rows: [table[torch.tensor(row)] for row in rows], sequences, blocks=2)


def spread(drafter) -> dict[str, torch.Tensor]:
    subject = on(drafter)
    [sequence] = subject.sequences
    [features] = subject.features([sequence.ids])
    found = injection.blocks_of(sequence.ids, subject.anchors(sequence), drafter.candidates, features.device)
    return injection.influence(drafter, features, *found)


def test_injection_alone_carries_news_one_place_a_layer():
    found = spread(small_drafter(dtype=torch.float64))
    for layer in range(LAYERS):
        for sender in range(PLACES):
            for place in range(PLACES):
                heard = found["injection"][sender, layer, place] > 1e-9
                assert bool(heard) == (sender <= place <= sender + layer + 1), (sender, layer, place)
                if place < sender:
                    assert found["altogether"][sender, layer, place] == 0
    assert bool((found["altogether"][0, 1] > 1e-9).all()), "attention carries it to every later place at once"


def test_without_writes_nothing_travels():
    found = spread(small_drafter(trained=False, dtype=torch.float64))["injection"]
    apart = found * (1 - torch.eye(PLACES, dtype=torch.float64))[:, None]
    assert apart.abs().max() == 0
    assert found.diagonal(dim1=0, dim2=2).min() > 0


def test_gates_and_cosines_are_what_was_planted(tmp_path: Path):
    drafter = small_drafter()
    subject = on(drafter)
    [sequence] = subject.sequences
    drafter.injection.receiver_gate.weight.data.zero_()
    drafter.injection.predecessor_gate.weight.data.zero_()
    drafter.injection.bias.data.fill_(-2.0)
    [features] = subject.features([sequence.ids])
    anchors, tokens = injection.blocks_of(sequence.ids, subject.anchors(sequence)[:1], PLACES, features.device)
    assert not set(tokens[0, 1:].tolist()) & {int(tokens[0, 0])}
    one = Subject(drafter, subject.features, subject.sequences, blocks=1)
    first = one.anchors(sequence)
    anchors, tokens = injection.blocks_of(sequence.ids, first, PLACES, features.device)
    states = drafter.blocks(features[None], torch.tensor([20]), anchors[None], tokens[None])
    drafter.codes[tokens[0, 1:]] = states.readouts[1][0, 0]  # the second layer's features are the right codes
    file = ResultFile(tmp_path / "injection", PROBE, {})
    injection.measure(one, file)
    gates = [file.lines[f"layer/{layer}"]["gate"] for layer in (1, 2, 3)]
    assert gates == [[pytest.approx(torch.tensor(-2.0).sigmoid().item(), abs=1e-5)] * PLACES] * LAYERS
    assert file.lines["layer/2"]["cosine"] == [pytest.approx(1.0, abs=1e-5)] * PLACES
    assert max(file.lines["layer/1"]["cosine"]) < 0.999
    assert not any(line["kind"] == "influence" for line in file.lines.values()), "one block has no other beside it"


def test_two_blocks_give_influence_by_distance(tmp_path: Path):
    file = ResultFile(tmp_path / "injection", PROBE, {})
    injection.measure(on(small_drafter(), answers=2), file)
    first = file.lines["influence/injection/1"]["distances"]
    assert first[1] > 0
    assert first[2:] == [0, 0, 0]


def test_other_drafters_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="token by token"):
        probed(small("eagle3"))
    with pytest.raises(ConfigError, match="no injection"):
        injection.measure(on(small("dflash")), ResultFile(tmp_path / "x", PROBE, {}))
