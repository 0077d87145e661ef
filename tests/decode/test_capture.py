"""Engines whose rounds are replayed from recordings, with a tape on the CPU: the tokens and rounds of eager ones."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.support.hybrid_target import hybrid_target
from tests.support.parallel import over
from tests.support.recording import Broken, Taped, Wrong, as_on_a_device
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.decode.capture import captured, recorded
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.captured import CapturedDraft
from dspine.errors import ConfigError
from dspine.kernels.recording import CaptureError
from dspine.target.captured import CapturedForward

PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt"), tuple(b"third"), tuple(b"and one that waits")]
PARAMS = {
    "greedy": SamplingParams(max_new_tokens=8, ignore_eos=True),
    "sampled": SamplingParams(temperature=1.0, seed=4, max_new_tokens=8, ignore_eos=True),
    "truncated": SamplingParams(temperature=1.2, top_k=20, top_p=0.9, seed=5, max_new_tokens=8, ignore_eos=True),
    "short": SamplingParams(temperature=0.8, seed=6, max_new_tokens=3, ignore_eos=True),
}
KINDS = ("dspine", "dflash", "domino", "dspark", "dflash2", "eagle3")


@pytest.fixture(autouse=True)
def device_like(monkeypatch):
    as_on_a_device(monkeypatch)


@pytest.fixture(scope="module")
def target():
    return tiny_target(num_hidden_layers=4, dtype=torch.float64)


def drafter_of(kind, target):
    if kind == "dspine":
        return tiny_drafter(target, lively=True, dtype=target.dtype, target_layer_ids=(0, 2))
    return over(target, kind, block_size=4)


@pytest.fixture
def record():
    """Makes recorders, and remembers them."""
    return Recorders()


class Recorders(list):
    def __call__(self):
        self.append(Taped())
        return self[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokens_and_rounds(target, record, kind):
    """Rows of all laws side by side, one that ends early, and one that takes its place."""
    params, drafter = list(PARAMS.values()), drafter_of(kind, target)
    eager = Engine(target, drafter, max_batch=3, capture="off").generate(PROMPTS, params)
    engine = Engine(target, drafter, max_batch=3, capture=record)
    for _ in range(2):  # the second time over what the first left in the caches
        ours = engine.generate(PROMPTS, params)
        assert [(c.token_ids, c.rounds) for c in ours] == [(c.token_ids, c.rounds) for c in eager]
    forwards, drafts = record
    assert forwards.replayed > 5
    assert drafts.replayed > 10  # drafts, and what they take in


def test_no_recording_is_made_twice(target, record):
    engine = Engine(target, drafter_of("dspine", target), max_batch=2, capture=record)
    counts = []
    for _ in range(3):
        engine.generate(PROMPTS[:2], PARAMS["greedy"])
        counts.append([each.recorded for each in record])
    assert counts[0] == counts[1] == counts[2]


def test_plain_decoding_is_recorded_too(target, record):
    eager = Engine(target, capture="off").generate(PROMPTS, PARAMS["greedy"])
    ours = Engine(target, capture=record).generate(PROMPTS, PARAMS["greedy"])
    assert [c.token_ids for c in ours] == [c.token_ids for c in eager]
    assert len(record) == 1
    assert record[0].replayed > 5


@pytest.mark.parametrize("verify", ["auto", 2, "confidence:0.5"])
def test_schedules_widen_and_narrow_what_is_replayed(target, record, verify):
    drafter = over(target, "dspark")
    costs = Engine(target, drafter, capture="off").cost_book(4) if verify == "auto" else None
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    plain = Engine(target, capture="off").generate(PROMPTS, params)
    ours = Engine(target, drafter, verify=verify, costs=costs, capture=record).generate(PROMPTS, params)
    assert [c.token_ids for c in ours] == [c.token_ids for c in plain]


def test_a_cpu_records_nothing_and_refuses_to(target):
    drafter = drafter_of("dspine", target)
    for choice in ("auto", "off"):
        parts = captured(choice, target, drafter)
        assert parts.forward == target.forward
        assert parts.drafter is drafter
        assert not parts.recorded
    with pytest.raises(ConfigError, match="capture: recordings are CUDA graphs, and tiny-qwen3 is on cpu"):
        Engine(target, drafter, capture="on")
    with pytest.raises(ConfigError, match="capture: 'maybe' is no choice\nIt is one of auto, on, off"):
        captured("maybe", target, drafter)


@pytest.mark.parametrize("recorder", [Broken, Wrong])
def test_what_fails_its_check_is_said_and_left_as_it_is(target, recorder):
    drafter = drafter_of("dspine", target)
    with pytest.warns(RuntimeWarning, match="this part of a round runs unrecorded"):
        parts = recorded(target, drafter, recorder, forced=False)
    assert parts.forward == target.forward
    with pytest.raises(CaptureError):
        recorded(target, drafter, recorder, forced=True)


def test_a_target_with_states_is_left_as_it_is():
    hybrid = hybrid_target("lfm2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = recorded(hybrid, None, Taped, forced=False)
    assert parts.forward == hybrid.forward
    with pytest.raises(CaptureError, match="keeps recurrent states"):
        recorded(hybrid, None, Taped, forced=True)


def test_parts(target):
    parts = recorded(target, drafter_of("dflash", target), Taped, forced=False)
    assert isinstance(parts.forward, CapturedForward)
    assert isinstance(parts.drafter, CapturedDraft)
    assert parts.recorded
