"""What is counted for Prometheus is what the evaluate room counts."""

from __future__ import annotations

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspine.decode.records import RoundRecord, Update
from dspine.evaluate import acceptance
from dspine.serve.http.metrics import Metrics


def read(metrics: Metrics) -> dict[str, float]:
    """Samples by name, and by name and label."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found[" ".join([sample.name, *sample.labels.values()])] = sample.value
    return found


def test_tau_and_places():
    chance = random.Random(3)
    rounds = []
    for _ in range(200):
        proposed = chance.randrange(0, 5)
        accepted = chance.randint(0, proposed)
        rounds.append(RoundRecord(proposed, accepted, chance.choice([accepted + 1, chance.randint(1, accepted + 1)])))
    rounds += [RoundRecord(15, stood, stood + 1, looked_up=True) for stood in (15, 3, 0)]
    metrics = Metrics()
    for record in rounds:
        metrics.updated(Update(0, "", (1,) * record.kept, rounds=(record,)), 0.1, first=False)
    told = read(metrics)
    assert told["dspine_tau"] == pytest.approx(acceptance.tau([rounds]))
    assert told["dspine_kept_tokens_total"] / told["dspine_rounds_total"] == pytest.approx(acceptance.tau([rounds]))
    assert told["dspine_completion_tokens_total"] == sum(record.kept for record in rounds)
    places = acceptance.places([rounds])
    assert len(places) == 4  # what was looked up is of no block
    assert told["dspine_looked_up_rounds_total"] == 3
    assert told["dspine_accepted_tokens_total"] == sum(record.landed for record in rounds)
    for place in places:
        assert told[f"dspine_place_reached_total {place.place}"] == place.reached
        assert told[f"dspine_place_accepted_total {place.place}"] == place.accepted


def test_how_answers_ended():
    metrics = Metrics()
    metrics.aborted()
    metrics.failed()
    metrics.responded(429)
    metrics.open(3, 5)
    told = read(metrics)
    assert told["dspine_answers_total abort"] == told["dspine_answers_total error"] == 1
    assert told["dspine_responses_total 429"] == 1
    assert (told["dspine_running"], told["dspine_waiting"]) == (3, 5)
