"""The loop over nano, held to the torch engine: tokens, text, rounds, finish reasons, logprobs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError, RequestError
from dspine.serve.mlx import sequence
from dspine.serve.mlx.engine import MlxEngine

GREEDY = SamplingParams(max_new_tokens=80)
SAMPLED = {
    "plain": SamplingParams(max_new_tokens=48, temperature=1.0, seed=5),
    "cut": SamplingParams(max_new_tokens=48, temperature=1.3, top_p=0.9, top_k=40, min_p=0.02, seed=6),
}
HISTORY = {
    "penalties": SamplingParams(
        max_new_tokens=48, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, min_new_tokens=20
    ),
    "bias": SamplingParams(max_new_tokens=32, temperature=0.7, seed=2, logit_bias={11: 3.0, 40: -100.0}),
}


def alike(ours, theirs):
    """Both completions say the same."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.text, one.finish_reason, one.seed) == (other.text, other.finish_reason, other.seed)
        assert one.rounds == other.rounds


@pytest.mark.parametrize("drafted", [True, False])
def test_greedy_tokens_and_rounds_are_the_torch_engines(pair, torch_pair, asked, drafted):
    ours = MlxEngine(pair[0], pair[1] if drafted else None).generate(asked, GREEDY)
    theirs = Engine(torch_pair[0], torch_pair[1] if drafted else None, max_batch=1).generate(asked, GREEDY)
    alike(ours, theirs)


def test_the_drafter_changes_no_token_and_is_worth_something(pair, asked):
    drafted, plain = (MlxEngine(pair[0], drafter).generate(asked, GREEDY) for drafter in (pair[1], None))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    rounds = [r for c in drafted for r in c.rounds]
    assert sum(r.kept for r in rounds) / len(rounds) > 2.5


@pytest.mark.parametrize("kind", SAMPLED)
def test_a_seed_draws_what_it_draws_in_the_torch_engine(pair, torch_pair, asked, kind):
    alike(
        MlxEngine(*pair).generate(asked, SAMPLED[kind]),
        Engine(*torch_pair, max_batch=1).generate(asked, SAMPLED[kind]),
    )


def test_a_seed_gives_its_tokens_again_and_another_gives_others(pair, asked):
    engine = MlxEngine(*pair)
    one, again, other = (
        engine.generate(asked[:1], SamplingParams(max_new_tokens=40, temperature=1.5, seed=seed))[0].token_ids
        for seed in (1, 1, 2)
    )
    assert one == again != other


@pytest.mark.parametrize("kind", HISTORY)
@pytest.mark.parametrize("drafted", [True, False])
def test_what_depends_on_the_history_is_the_torch_engines(pair, torch_pair, asked, kind, drafted):
    ours = MlxEngine(pair[0], pair[1] if drafted else None).generate(asked[:2], HISTORY[kind])
    theirs = Engine(torch_pair[0], torch_pair[1] if drafted else None, max_batch=1).generate(asked[:2], HISTORY[kind])
    alike(ours, theirs)


def test_every_cap_gives_a_prefix(pair, asked):
    engine = MlxEngine(*pair)
    [whole] = engine.generate(asked[:1], SamplingParams(max_new_tokens=24, ignore_eos=True))
    for cap in (1, 2, 7, 8, 9, 23):
        [cut] = engine.generate(asked[:1], SamplingParams(max_new_tokens=cap, ignore_eos=True))
        assert cut.token_ids == whole.token_ids[:cap]
        assert cut.finish_reason == "length"
        assert sum(r.kept for r in cut.rounds) + 1 == cap


def test_a_stop_string_inside_a_block_cuts_text_and_tokens(pair, torch_pair, asked):
    stop = SamplingParams(max_new_tokens=80, stop=("because",))
    ours, theirs = MlxEngine(*pair).generate(asked, stop), Engine(*torch_pair, max_batch=1).generate(asked, stop)
    alike(ours, theirs)
    assert any(c.finish_reason == "stop" and "because" not in c.text for c in ours)


def test_a_stop_id_ends_the_answer_with_it(pair, asked):
    [whole] = MlxEngine(*pair).generate(asked[:1], GREEDY)
    for place in (2, 5, 9):
        wanted = whole.token_ids[place]
        first = whole.token_ids.index(wanted)
        [cut] = MlxEngine(*pair).generate(asked[:1], SamplingParams(max_new_tokens=80, stop_token_ids=(wanted,)))
        assert cut.token_ids == whole.token_ids[: first + 1]


def test_logprobs_are_the_torch_engines(pair, torch_pair, asked):
    wanted = SamplingParams(max_new_tokens=24, logprobs=3)
    [ours] = MlxEngine(*pair).generate(asked[:1], wanted)
    [theirs] = Engine(*torch_pair, max_batch=1).generate(asked[:1], wanted)
    assert len(ours.logprobs) == len(ours.token_ids)
    for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


@pytest.mark.parametrize("chunk", [1, 5, 512])
def test_prefill_in_chunks_changes_nothing(pair, asked, chunk):
    params = SamplingParams(max_new_tokens=16)
    assert MlxEngine(*pair, prefill_chunk=chunk).generate(asked[:1], params)[0].rounds == (
        MlxEngine(*pair).generate(asked[:1], params)[0].rounds
    )


def test_a_stream_adds_up_to_the_answer(pair, asked):
    engine = MlxEngine(*pair)
    updates = list(engine.stream(asked[0], GREEDY))
    [whole] = engine.generate(asked[:1], GREEDY)
    assert "".join(u.text for u in updates) == whole.text
    assert sum((u.token_ids for u in updates), ()) == whole.token_ids
    assert [u.finished for u in updates] == [False] * (len(updates) - 1) + [True]


def test_a_stream_that_is_closed_leaves_nothing_behind(pair, asked):
    engine = MlxEngine(*pair)
    for _, update in zip(range(3), stream := engine.stream(asked[1], GREEDY), strict=False):
        assert not update.finished
    stream.close()
    assert engine.generate(asked[:1], GREEDY)[0].token_ids == MlxEngine(*pair).generate(asked[:1], GREEDY)[0].token_ids


def test_fewer_candidates_by_a_requests_own_rule(pair, asked):
    [whole] = MlxEngine(*pair).generate(asked[:1], GREEDY)
    [few] = MlxEngine(*pair).generate(asked[:1], SamplingParams(max_new_tokens=80, verify=2))
    assert few.token_ids == whole.token_ids
    assert max(r.proposed for r in few.rounds) == 2


def test_beyond_the_drafters_positions_it_goes_on_plainly(pair, asked, monkeypatch):
    reach = len(asked[0]) + 20
    monkeypatch.setattr(type(pair[1]), "max_positions", property(lambda self: reach))
    params = SamplingParams(max_new_tokens=60, ignore_eos=True)
    with pytest.warns(RuntimeWarning, match="continues without drafts"):
        [drafted] = MlxEngine(*pair).generate(asked[:1], params)
    assert drafted.token_ids == MlxEngine(pair[0]).generate(asked[:1], params)[0].token_ids
    assert drafted.rounds[-1].proposed == 0 < drafted.rounds[0].proposed


def test_both_caches_hold_what_was_committed_after_every_round(pair, asked, monkeypatch):
    seen = []
    advance = sequence.Sequence.advance

    def watched(self):
        advance(self)
        if self.row.finish is None:
            seen.append((self.row.position, self._context.length, self._caches[0].offset))

    monkeypatch.setattr(sequence.Sequence, "advance", watched)
    MlxEngine(*pair).generate(asked[:1], GREEDY)
    assert seen
    assert all(position == context == cache for position, context, cache in seen)
    assert all(later[0] > earlier[0] for earlier, later in pairwise(seen))


def test_logits_that_are_no_numbers_end_the_request(pair, asked, monkeypatch):
    forward = type(pair[0]).forward
    monkeypatch.setattr(type(pair[0]), "forward", lambda self, *args: (forward(self, *args)[0] * float("nan"), None))
    with pytest.raises(Exception, match="not numbers"):
        MlxEngine(pair[0]).generate(asked[:1], GREEDY)


def test_what_cannot_be_honoured_is_refused_by_name(pair, asked):
    with pytest.raises(RequestError, match="processors"):
        MlxEngine(*pair).generate(asked[:1], SamplingParams(processors=(lambda ids, scores: scores,)))
    for policy in ("auto", "scheduled", "lagged"):
        with pytest.raises(ConfigError, match=policy):
            MlxEngine(*pair, verify=policy)
    with pytest.raises(ConfigError, match="confidence"):
        MlxEngine(*pair, verify="confidence:0.5")
    with pytest.raises(RequestError, match="empty"):
        MlxEngine(*pair).generate([[]])
