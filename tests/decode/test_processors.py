"""A block is processed as the same number of plain steps would be, by transformers' own processors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from dspine.decode.processors import RowProcessor, mask_undecodable, token_logprobs
from dspine.decode.sampling import SamplingParams
from dspine.errors import RequestError

VOCAB = 16
DECODABLE = 14
EOS = frozenset({2, 3})


def row_processor(params, prompt_length, decodable=DECODABLE):
    return RowProcessor(params, prompt_length, params.terminators(EOS), decodable)


def one_step(params, history, prompt_length, logits, decodable=DECODABLE):
    """The processing of one plain step, (V,) -> (V,), from transformers' processors and the penalties' definition."""
    ids, scores = torch.tensor([history]), logits[None].float()
    scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    for token in set(history):
        count = history[prompt_length:].count(token)
        scores[0, token] -= params.frequency_penalty * count
        scores[0, token] -= params.presence_penalty * (count > 0)
    if params.logit_bias:
        scores = SequenceBiasLogitsProcessor({(t,): b for t, b in params.logit_bias.items()})(ids, scores)
    ends = sorted(params.terminators(EOS))
    if params.min_new_tokens and ends:
        scores = MinNewTokensLengthLogitsProcessor(prompt_length, params.min_new_tokens, ends)(ids, scores)
    scores[:, decodable:] = -torch.inf
    for processor in params.processors:
        scores = processor(ids, scores)
    return scores[0]


def step_by_step(params, logits, history, drafts, prompt_length):
    return torch.stack(
        [one_step(params, [*history, *drafts[:i]], prompt_length, logits[i]) for i in range(len(drafts) + 1)]
    )


@st.composite
def blocks(draw):
    """Few ids, so that prompt, output and candidates repeat each other."""
    token = st.integers(0, DECODABLE - 1)
    prompt = draw(st.lists(token, min_size=1, max_size=6))
    output = draw(st.lists(token, max_size=6))
    drafts = draw(st.lists(token, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    return prompt, output, drafts, 4 * torch.randn(len(drafts) + 1, VOCAB, generator=generator)


some_params = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.75, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.25]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -2.5, 4.0]), max_size=3),
    min_new_tokens=st.sampled_from([0, 3, 9]),
    stop_token_ids=st.sampled_from([(), (5,)]),
    ignore_eos=st.booleans(),
)


@settings(max_examples=120)
@given(blocks(), some_params)
def test_a_block_is_so_many_plain_steps(block, params):
    prompt, output, drafts, logits = block
    history = [*prompt, *output]
    before = logits.clone()
    processed = row_processor(params, len(prompt))(logits, history, drafts).scores
    assert torch.equal(before, logits), "raw logits are still needed for logprobs"
    torch.testing.assert_close(processed, step_by_step(params, logits, history, drafts, len(prompt)), rtol=0, atol=1e-5)


@given(blocks(), some_params)
def test_where_nothing_is_active_the_block_stays(block, params):
    prompt, output, drafts, logits = block
    processor = row_processor(params, len(prompt))
    if not processor.active(len(output)):
        mask_undecodable(logits, DECODABLE)
        assert torch.equal(processor(logits, [*prompt, *output], drafts).scores, logits)


def test_what_is_active():
    assert not row_processor(SamplingParams(temperature=1, top_k=3, logprobs=2), 1).active(0)
    for params in (
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=-1),
        SamplingParams(frequency_penalty=1),
        SamplingParams(logit_bias={1: 1}),
        SamplingParams(processors=[lambda ids, scores: scores]),
    ):
        assert row_processor(params, 1).active(10**6)
    early = row_processor(SamplingParams(min_new_tokens=4), 1)
    assert early.active(3)
    assert not early.active(4)
    assert not row_processor(SamplingParams(min_new_tokens=4, ignore_eos=True), 1).active(0)


def test_min_new_tokens_reaches_into_the_block_as_far_as_it_says():
    """One token is out, three are the least: the second and third may not end the request, the fourth may."""
    params = SamplingParams(min_new_tokens=3, stop_token_ids=[5])
    processed = row_processor(params, 2)(torch.zeros(4, VOCAB), [1, 1, 4], [6, 7, 8]).scores
    for place, allowed in enumerate((False, False, True, True)):
        assert bool((processed[place, [2, 3, 5]] == (0 if allowed else -torch.inf)).all()), place


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_float32_or_better(dtype):
    processor = row_processor(SamplingParams(repetition_penalty=1.3, frequency_penalty=0.1), 1)
    processed = processor(torch.ones(2, VOCAB, dtype=dtype), [1, 4], [4]).scores
    assert processed.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = torch.tensor([1 / 1.3 - 0.1, 1 / 1.3 - 0.2], dtype=torch.float64)
    torch.testing.assert_close(
        processed[:, 4].double(), expected, rtol=0, atol=1e-15 if dtype == torch.float64 else 1e-6
    )


class Automaton(LogitsProcessor):
    """Allows the digits of a cycle through states 4 → 5 → … → 8 → 4, or EOS in state 8; refuses any other history."""

    def __init__(self, prompt_length):
        self.prompt_length = prompt_length
        self.histories = []

    def __call__(self, input_ids, scores):
        self.histories.append(input_ids[0].tolist())
        state = 8
        for token in input_ids[0, self.prompt_length :].tolist():
            assert token in self.allowed(state), f"{token} is illegal in state {state}"
            state = token
        mask = torch.full_like(scores, -torch.inf)
        mask[:, self.allowed(state)] = 0
        return scores + mask

    @staticmethod
    def allowed(state):
        assert state != 2, "the grammar has ended"
        return [4 if state == 8 else state + 1, *([2] if state == 8 else [])]


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_automaton_sees_every_legal_history_and_no_other(temperature):
    prompt, output = [1, 7, 7], [4, 5]
    logits = torch.zeros(6, VOCAB)
    logits[:, 2] = 1.0  # EOS wherever it may be
    for drafts, places in (
        ([6, 7, 8, 9, 5], 4),  # 9 after 8 is illegal: the place after it is not processed
        ([6, 6, 7, 8, 4], 2),
        ([6, 7, 8, 2, 4], 4),  # nothing follows EOS
        ([9, 7, 8, 2, 4], 1),
    ):
        automaton = Automaton(len(prompt))
        params = SamplingParams(temperature=temperature, processors=[automaton])
        processed = row_processor(params, len(prompt))(logits, [*prompt, *output], drafts).scores
        histories = [[*prompt, *output, *drafts[:i]] for i in range(places)]
        assert automaton.histories == histories
        again = SamplingParams(processors=[Automaton(len(prompt))])
        for place, history in enumerate(histories):
            assert torch.equal(processed[place], one_step(again, history, len(prompt), logits[place]))


def test_a_greedy_request_goes_on_only_behind_its_choice():
    """Sampled, any token with a chance may stand; greedy, the argmax alone."""
    logits = torch.zeros(3, VOCAB)
    logits[:, 6] = 1.0
    for temperature, places in ((0, 1), (1, 3)):
        seen = []

        def watch(ids, scores, seen=seen):
            seen.append(ids.shape[1])
            return scores

        params = SamplingParams(temperature=temperature, processors=[watch])
        row_processor(params, 1)(logits, [1], [5, 6])
        assert seen == [1, 2, 3][:places]


def test_own_processors_run_in_order_after_the_penalties_and_may_write_in_place():
    calls = []

    def first(ids, scores):
        calls.append(("first", scores[0, 4].item()))
        scores[:, 4] += 1
        return scores

    def second(ids, scores):
        calls.append(("second", scores[0, 4].item()))
        return scores * 2

    params = SamplingParams(frequency_penalty=0.5, processors=[first, second])
    logits = torch.ones(1, VOCAB)
    processed = row_processor(params, 1)(logits, [1, 4], []).scores
    assert calls == [("first", 0.5), ("second", 1.5)]
    assert processed[0, 4] == 3
    assert torch.equal(logits, torch.ones(1, VOCAB))


def test_a_processor_of_transformers_works_as_it_is():
    params = SamplingParams(temperature=1, processors=[NoRepeatNGramLogitsProcessor(2)])
    logits = torch.zeros(3, VOCAB)
    processed = row_processor(params, 1)(logits, [4, 5, 4], [6, 4]).scores
    assert processed[0, 5] == -torch.inf
    assert processed[1, 5] == 0
    assert processed[2, [5, 6]].tolist() == [-torch.inf, -torch.inf]


def test_the_padding_of_the_head_stays_masked_whatever_a_processor_writes():
    params = SamplingParams(processors=[lambda ids, scores: torch.zeros_like(scores)])
    processed = row_processor(params, 1)(torch.zeros(1, VOCAB), [1], []).scores
    assert (processed[:, DECODABLE:] == -torch.inf).all()
    assert (processed[:, :DECODABLE] == 0).all()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda scores: None, "NoneType"),
        (lambda scores: scores[0], r"\(16,\)"),
        (lambda scores: scores[:, :5], r"\(1, 5\)"),
        (lambda scores: scores - torch.inf, "no token with a finite score"),
        (lambda scores: scores * torch.nan, "no token with a finite score"),
    ],
)
def test_a_processor_that_breaks_the_protocol_is_named(returned, message):
    def grammar(ids, scores):
        return returned(scores)

    params = SamplingParams(processors=[grammar])
    processed = row_processor(params, 1)(torch.zeros(1, VOCAB), [1], [])
    assert processed.places == 0
    with pytest.raises(RequestError, match=message):
        raise processed.error


def test_what_is_raised_behind_candidates_is_kept_with_the_places_before_it():
    def ends_after(ids, scores):
        if ids.shape[1] > 3:
            raise LookupError
        return scores + 1

    params = SamplingParams(temperature=1, processors=[ends_after])
    processed = row_processor(params, 1)(torch.zeros(5, VOCAB), [1, 4], [6, 7, 8, 9])
    assert (processed.places, type(processed.error)) == (2, LookupError)
    assert (processed.scores[:2, :DECODABLE] == 1).all()


def test_mask_undecodable_touches_padding_only():
    logits = torch.zeros(2, 3, VOCAB)
    mask_undecodable(logits, DECODABLE)
    assert (logits[..., DECODABLE:] == -torch.inf).all()
    assert (logits[..., :DECODABLE] == 0).all()
    mask_undecodable(logits, VOCAB)
    assert (logits[..., :DECODABLE] == 0).all()


def test_logprobs_are_the_log_softmax_of_the_raw_logits():
    logits = 5 * torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(2))
    ids = torch.tensor([0, 3, 3, 15, 9, 1, 2])
    reference = logits.double().log_softmax(-1)
    found = token_logprobs(logits, ids, 5)
    torch.testing.assert_close(found.chosen.double(), reference[torch.arange(7), ids], rtol=0, atol=1e-5)
    top, top_ids = reference.topk(5)
    assert torch.equal(found.top_ids, top_ids)
    torch.testing.assert_close(found.top.double(), top, rtol=0, atol=1e-5)
    assert found.chosen.dtype == found.top.dtype == torch.float32
    assert token_logprobs(logits, ids, 0).top.shape == (7, 0)
    assert token_logprobs(logits[:0], ids[:0], 2).top_ids.shape == (0, 2)
