"""Sampling parameters: a value is honoured or refused by name."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from dspine.decode.sampling import SamplingParams, law_of
from dspine.errors import RequestError
from dspine.kernels.law import law_probs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", 101),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", None),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", math.nan),
        ("logit_bias", {3: 101}),
        ("logit_bias", {3: -math.inf}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", [3]),
        ("seed", -1),
        ("seed", 2**64),
        ("max_new_tokens", 0),
        ("max_new_tokens", True),
        ("min_new_tokens", -1),
        ("min_new_tokens", 257),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [3]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("ignore_eos", "perhaps"),
        ("logprobs", -1),
        ("processors", [3]),
        ("best_of", 3),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_all_faults_are_told_at_once_and_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RequestError) as caught:
        SamplingParams(top_k=-1, top_p=7, n=2)
    message = str(caught.value)
    for part in ("top_k", "-1", "top_p", "7", "n: no such", "frequency_penalty"):
        assert part in message


def test_json_and_bare_values_are_read():
    params = SamplingParams.model_validate_json('{"logit_bias": {"7": -3}, "stop": "END", "stop_token_ids": 5}')
    assert params.logit_bias == {7: -3.0}
    assert params.stop == ("END",)
    assert params.stop_token_ids == (5,)

    def processor(ids, scores):
        return scores

    assert SamplingParams(processors=processor).processors == (processor,)
    assert SamplingParams(seed=2**64 - 1).seed == 2**64 - 1
    with pytest.raises(RequestError, match=f"less than {2**64} "):
        SamplingParams(seed=2**64)
    with pytest.raises(RequestError, match="truth value"):
        SamplingParams(seed=True)


def test_parameters_are_frozen():
    with pytest.raises(ValidationError):
        SamplingParams().temperature = 1.0  # type: ignore[misc]


def test_the_default_is_greedy_and_processes_nothing():
    params = SamplingParams()
    assert params.greedy
    assert not params.penalised
    assert not SamplingParams(temperature=1e-6).greedy
    assert all(
        SamplingParams(**{name: 0.5}).penalised
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
    )


def test_terminators_are_eos_unless_ignored_and_the_stop_ids():
    eos = frozenset({1, 2})
    assert SamplingParams(stop_token_ids=[7]).terminators(eos) == {1, 2, 7}
    assert SamplingParams(stop_token_ids=[7], ignore_eos=True).terminators(eos) == {7}


def test_the_vocabulary_bounds_ids_and_logprobs():
    SamplingParams(logit_bias={9: 1}, stop_token_ids=[9], logprobs=10).check(10)
    for params, name in (
        (SamplingParams(logit_bias={10: 1}), "logit_bias"),
        (SamplingParams(stop_token_ids=[12]), "stop_token_ids"),
        (SamplingParams(logprobs=11), "logprobs"),
    ):
        with pytest.raises(RequestError, match=name):
            params.check(10)


def test_a_batch_has_the_laws_of_its_requests():
    batch = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=3),
        SamplingParams(temperature=1, top_p=0.5),
        SamplingParams(temperature=2, min_p=0.3),
    ]
    logits = torch.randn(4, 3, 12, generator=torch.Generator().manual_seed(0)) * 2
    together = law_probs(logits, law_of(batch))
    for row, params in enumerate(batch):
        assert torch.equal(together[row], law_probs(logits[row : row + 1], law_of([params]))[0])


def test_truncation_beside_temperature_0_changes_nothing():
    logits = torch.randn(1, 50, 12, generator=torch.Generator().manual_seed(1))
    plain = law_probs(logits, law_of([SamplingParams()]))
    cut = law_probs(logits, law_of([SamplingParams(top_k=2, top_p=0.3, min_p=0.9)]))
    assert torch.equal(plain, cut)
