"""What the target tells of sequences: against transformers' own forward, whatever the batch and the chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_target import tiny_target

from dspine.errors import DataError
from dspine.train import sequences
from dspine.train.responses import ResponseRow, TrainingSequence
from dspine.train.sequences import encode, log_sum_exp, online_batch, teachers, trainable

TAPS = (3, 0)  # not in ascending order: the order of the list is the order of the features


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def row(name, prompt, answer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (prompt + answer,), generator=generator).tolist()
    return ResponseRow(name, "a", [], ids[:prompt], ids[prompt:], "length")


ROWS = [row("long", 9, 30, 1), row("short", 2, 3, 2), row("middle", 20, 4, 3)]


def reference(target, ids):
    out = target.model(torch.tensor([ids]), output_hidden_states=True)
    features = torch.cat([out.hidden_states[tap + 1][0] for tap in TAPS], dim=-1)
    return features, out.hidden_states[-1][0], out.logits[0]


@pytest.mark.parametrize(("tokens", "width"), [(2048, 512), (64, 7), (1, 1)])
def test_a_batch_is_what_the_model_says_of_each_sequence_alone(target, monkeypatch, tokens, width):
    monkeypatch.setattr(sequences, "TOKENS_AT_ONCE", tokens)
    monkeypatch.setattr(sequences, "WIDTH", width)
    batch = online_batch(target, ROWS, TAPS)
    assert batch.sample_ids == ("long", "short", "middle")
    assert batch.lengths.tolist() == [39, 5, 24]
    for n, one in enumerate(ROWS):
        ids = one.prompt_ids + one.response_ids
        size, asked = len(ids), len(one.prompt_ids)
        features, hidden, logits = reference(target, ids)
        taught = slice(asked - 1, size - 1)  # the positions before a response token
        assert batch.ids[n, :size].tolist() == ids
        assert batch.loss_mask[n].tolist() == [False] * asked + [True] * (size - asked) + [False] * (39 - size)
        torch.testing.assert_close(batch.features[n, :size], features, atol=2e-4, rtol=1e-5)
        torch.testing.assert_close(batch.hidden[n, taught], hidden[taught], atol=1e-4, rtol=1e-5)
        # The teacher's exact law without another pass over the vocabulary.
        law = (target.logits(batch.hidden[n, taught]) - batch.lse[n, taught, None]).exp()
        torch.testing.assert_close(law, logits[taught].softmax(-1), atol=1e-5, rtol=1e-4)
        for tensor in (batch.ids, batch.features):
            assert not tensor[n, size:].any()
        for tensor in (batch.hidden, batch.lse):
            assert not tensor[n, : asked - 1].any()
            assert not tensor[n, size - 1 :].any()


def test_bfloat16_rounds_the_features_alone(target):
    kept, _ = trainable(target, ROWS)
    for whole, rounded in zip(encode(target, kept, TAPS), encode(target, kept, TAPS, torch.bfloat16), strict=True):
        assert torch.equal(rounded.features, whole.features.bfloat16())
        assert torch.equal(rounded.hidden, whole.hidden)
        assert torch.equal(rounded.lse, whole.lse)
        assert rounded.lse.dtype == rounded.hidden.dtype == torch.float32


@given(st.lists(st.integers(1, 50), max_size=12))
def test_a_forward_is_bounded_in_tokens(lengths):
    made = [TrainingSequence(str(i), [0] * size, [True] * size) for i, size in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "TOKENS_AT_ONCE", 64)
        groups = list(sequences._groups(made))
    assert [s for group in groups for s in group] == made
    for group in groups:
        assert len(group) == 1 or len(group) * max(len(s.ids) for s in group) <= 64


def test_teachers_come_before_what_is_trained_on():
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1]]).bool()
    assert teachers(mask).int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 0]]


def test_a_gap_in_the_mask_leaves_its_teachers_out(target):
    mask = [False, True, True, False, False, True]
    (encoded,) = encode(target, [TrainingSequence("gap", [1, 2, 3, 4, 5, 6], mask)], TAPS)
    _, hidden, logits = reference(target, [1, 2, 3, 4, 5, 6])
    where = [0, 1, 4]
    torch.testing.assert_close(encoded.hidden, hidden[where], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(encoded.lse, logits[where].logsumexp(-1), atol=1e-4, rtol=1e-5)


def test_chunks_of_the_vocabulary_pass_change_nothing(target, monkeypatch):
    hidden = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    whole = target.logits(hidden).logsumexp(-1)
    monkeypatch.setattr(sequences, "LOGITS_AT_ONCE", 7 * 320)
    torch.testing.assert_close(log_sum_exp(target, hidden), whole, atol=1e-5, rtol=1e-6)
    assert log_sum_exp(target, hidden[:0]).shape == (0,)


def test_a_teacher_in_bfloat16_has_logits_in_float32():
    target = tiny_target(dtype=torch.bfloat16)
    hidden = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = (hidden.double() @ target.head_weight.double().T).logsumexp(-1)
    torch.testing.assert_close(log_sum_exp(target, hidden).double(), exact, atol=1e-5, rtol=1e-6)


def test_a_sample_that_is_not_finite_is_left_out_by_name():
    broken = tiny_target()
    with torch.no_grad():
        broken.embedding.weight[300] = torch.nan
    bad = ResponseRow("bad", "a", [], [300, 4], [5, 6], "length")
    batch = online_batch(broken, [ROWS[1], bad, ROWS[2]], TAPS)
    assert batch.sample_ids == ("short", "middle")
    assert batch.skipped == ("bad",)
    assert all(t.isfinite().all() for t in (batch.features, batch.hidden, batch.lse))
    clean = online_batch(tiny_target(), [ROWS[1], ROWS[2]], TAPS)
    torch.testing.assert_close(batch.features, clean.features, atol=2e-4, rtol=1e-5)
    nothing = online_batch(broken, [bad], TAPS)
    assert nothing.sample_ids == ()
    assert nothing.features.shape == (0, 1, 128)


def test_rows_are_cut_and_those_without_a_response_left_are_named(target):
    batch = online_batch(target, ROWS, TAPS, max_length=15)
    assert batch.sample_ids == ("long", "short")
    assert batch.lengths.tolist() == [15, 5]
    assert batch.skipped == ("middle",)


def test_rows_of_another_target_are_refused(target):
    with pytest.raises(DataError, match="'x' holds token id 320; tiny-qwen3 has 320"):
        trainable(target, [ResponseRow("x", "a", [], [1], [320], "stop")])
    with pytest.raises(DataError, match="'y' has 4097 tokens; the context of tiny-qwen3 ends at 4096"):
        trainable(target, [row("y", 1, 4096)])
    assert len(trainable(target, [row("y", 1, 4096)], max_length=4096)[0]) == 1


def test_a_batch_moves_as_a_whole(target):
    moved = online_batch(target, ROWS[:1], TAPS).to("meta")
    assert moved.features.device.type == moved.ids.device.type == moved.lse.device.type == "meta"
    assert moved.sample_ids == ("long",)
