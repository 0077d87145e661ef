"""The objective against a slow reference: plain loops in float64, written from the formulas of the method."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target
from torch import Tensor

from dspine.drafter.dspine import DSpine
from dspine.train.blocks import Blocks, cut_blocks, draw_anchors
from dspine.train.learner import Learner, Moment
from dspine.train.objectives.dspine import DSpineObjective, Terms, Weights, dspine_terms, window_loss
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher, ordinary_terms
from dspine.train.responses import ResponseRow
from dspine.train.sequences import SequenceBatch, online_batch

TAPS = (1, 3)
RESTRICTED = tuple(range(0, 320, 2))


@dataclass
class Setting:
    """A drafter in float64, a batch of ragged sequences and their blocks."""

    drafter: DSpine
    batch: SequenceBatch
    blocks: Blocks
    replaced: Tensor

    def states(self):
        return self.drafter.blocks(
            self.batch.features, self.batch.lengths, self.blocks.anchors, self.blocks.tokens, self.replaced, 1
        )

    def terms(self, states, **weights) -> Terms:
        return dspine_terms(
            self.drafter,
            DraftVocabulary.of(self.drafter.head, self.drafter.draft_ids, precision=torch.float64),
            states,
            self.blocks,
            Teacher(self.batch.hidden, self.batch.lse),
            self.drafter.codes,
            candidates=self.drafter.config.top_k,
            weights=Weights(**weights),
        )


def double(batch: SequenceBatch) -> SequenceBatch:
    return replace(batch, features=batch.features.double(), hidden=batch.hidden.double(), lse=batch.lse.double())


def rows_from(batch: SequenceBatch, rows: list[int]) -> SequenceBatch:
    """Some sequences of a batch, padded to the longest of them."""
    size = int(batch.lengths[rows].max())
    cut = {name: getattr(batch, name)[rows, :size] for name in ("ids", "loss_mask", "features", "hidden", "lse")}
    return replace(batch, sample_ids=tuple(batch.sample_ids[i] for i in rows), lengths=batch.lengths[rows], **cut)


def rows_of(target, responses, seed=0):
    """Response rows of the given lengths, prompts of 6 tokens, random ids."""
    generator = torch.Generator().manual_seed(seed)
    return [
        ResponseRow(
            f"r{i}",
            "test",
            [],
            torch.randint(0, 250, (6,), generator=generator).tolist(),
            torch.randint(0, 250, (length,), generator=generator).tolist(),
            "length",
        )
        for i, length in enumerate(responses)
    ]


def setting(draft_ids=None, responses=(9, 14, 5), seed=0, **sizes) -> Setting:
    target = tiny_target(seed=seed)
    drafter = tiny_drafter(target, draft_ids=draft_ids, dtype=torch.float64, lively=True, **sizes)
    batch = double(online_batch(target, rows_of(target, responses, seed), TAPS))
    anchors = [
        draw_anchors(mask[:length], 5, seed=0, epoch=0, sample=name)
        for mask, length, name in zip(batch.loss_mask, batch.lengths.tolist(), batch.sample_ids, strict=True)
    ]
    blocks = cut_blocks(batch.ids, batch.loss_mask, batch.lengths, anchors, drafter.candidates)
    replaced = torch.zeros_like(blocks.valid)
    replaced[:, ::2] = True
    return Setting(drafter, batch, blocks, replaced & blocks.valid)


def reference(s: Setting, states, *, alpha: float, beta: float, mass_above: float, gamma: float = 7.0) -> Tensor:
    """L of one window, a row at a time. The only shared part is the network: states, refine, codes, head."""
    drafter = s.drafter
    head = drafter.head.double()
    ids = list(range(len(head))) if drafter.draft_ids is None else drafter.draft_ids.tolist()
    k = drafter.config.top_k
    sums: dict[str, Tensor | float] = dict.fromkeys(("ce", "l1", "rce", "rl1", "emb"), 0.0)
    counts = dict.fromkeys(sums, 0.0)
    batch, places = s.batch, drafter.candidates
    for n in range(len(batch.ids)):
        for a in range(s.blocks.anchors.shape[1]):
            if not s.blocks.valid[n, a]:
                continue
            start = int(s.blocks.anchors[n, a])
            for t in range(1, places + 1):
                at = start + t
                if at >= int(batch.lengths[n]) or not batch.loss_mask[n, at]:
                    break  # this place and all after it are unsupervised
                w, label = math.exp(-(t - 1) / gamma), int(batch.ids[n, at])
                p = ((head @ batch.hidden[n, at - 1]) - batch.lse[n, at - 1]).exp()  # over all of V
                q = torch.stack([head[v] @ states.hidden[n, a, t - 1] for v in ids]).softmax(0)
                if label in ids:
                    sums["ce"] -= w * q[ids.index(label)].log()
                    counts["ce"] += w
                gap = sum((q[i] - p[v]).abs() for i, v in enumerate(ids))
                outside = 1 - sum(p[v] for v in ids) if drafter.draft_ids is not None else 0.0
                sums["l1"] += w * (gap + outside)
                counts["l1"] += w

                order = q.detach().argsort(descending=True)[:k].tolist()
                candidates = [ids[i] for i in order]
                refined = drafter.refine(states.last[n, a, t - 1], batch.ids[n, at - 1])
                r = torch.stack([head[v] @ refined for v in candidates]).softmax(0)
                mass = sum(p[v] for v in candidates)
                if label in candidates:
                    sums["rce"] -= w * r[candidates.index(label)].log()
                    counts["rce"] += w
                if mass > mass_above:
                    sums["rl1"] += w * sum((r[i] - p[v] / mass).abs() for i, v in enumerate(candidates))
                    counts["rl1"] += w
                for readout in states.readouts:
                    f, c = readout[n, a, t - 1], drafter.codes[label].double()
                    sums["emb"] += w * (1 - (f @ c) / (f.norm() * c.norm()))
                counts["emb"] += w
    mean = {name: sums[name] / counts[name] if counts[name] else 0.0 for name in sums}
    strength = beta * mean["ce"].detach()  # stopgrad
    distribution = alpha * (mean["ce"] + mean["rce"]) + (1 - alpha) * (mean["l1"] + mean["rl1"])
    return distribution + strength * mean["emb"]


def gradients(drafter: DSpine, loss: Tensor) -> dict[str, Tensor]:
    drafter.zero_grad()
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in drafter.named_parameters()}


@pytest.mark.parametrize("draft_ids", [None, RESTRICTED], ids=["full", "restricted"])
def test_loss_and_gradients_equal_the_reference(draft_ids):
    s = setting(draft_ids, top_k=80)
    terms = s.terms(s.states(), chunk=7, candidate_mass=0.2)
    ours = window_loss(terms, Terms.total([terms]), alpha=0.1, beta=0.3)
    ours_gradient = gradients(s.drafter, ours)
    slow = reference(s, s.states(), alpha=0.1, beta=0.3, mass_above=0.2)
    slow_gradient = gradients(s.drafter, slow)

    ce, l1, refined_ce, refined_l1, alignment = terms.denominators.tolist()
    assert 0 < refined_ce < l1, "some labels are candidates, some are not"
    assert 0 < refined_l1 < l1, "some candidate sets hold enough mass, some do not"
    assert alignment == l1
    assert ce == l1 if draft_ids is None else 0 < ce < l1
    # 1e-8: the codes are float32, so their norm is 1 to 1e-8 only, by which the reference divides.
    assert ours.item() == pytest.approx(slow.item(), rel=1e-8)
    for name, gradient in slow_gradient.items():
        scale = gradient.abs().max()
        assert scale > 0, name
        torch.testing.assert_close(ours_gradient[name] / scale, gradient / scale, rtol=0, atol=1e-7, msg=name)


def test_the_strength_of_the_alignment_carries_no_gradient():
    s = setting()
    states = s.states()
    terms = s.terms(states)
    window = Terms.total([terms])
    whole = gradients(s.drafter, window_loss(terms, window, alpha=0.1, beta=0.3))
    terms = s.terms(s.states())
    plain = gradients(s.drafter, window_loss(terms, window, alpha=0.1, beta=0.0))
    terms = s.terms(s.states())
    strength = 0.3 * float(window.means()[0])
    emb = gradients(s.drafter, strength * terms.sums[4] / window.denominators[4])
    for name in whole:
        torch.testing.assert_close(whole[name], plain[name] + emb[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_chunks_change_nothing(chunk):
    s = setting(RESTRICTED)
    whole, parts = s.terms(s.states()), s.terms(s.states(), chunk=chunk)
    torch.testing.assert_close(parts.sums, whole.sums, rtol=1e-12, atol=1e-12)
    a = gradients(s.drafter, s.terms(s.states()).sums.sum())
    b = gradients(s.drafter, s.terms(s.states(), chunk=chunk).sums.sum())
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("draft_ids", [None, RESTRICTED], ids=["full", "restricted"])
def test_micro_batches_change_nothing(draft_ids):
    """Samples with 3, 50, 7 and (behind the first token) 0 labels: one window, cut in three ways."""
    target = tiny_target()
    batch = double(online_batch(target, rows_of(target, (3, 50, 7, 1)), TAPS))
    drafter = tiny_drafter(target, draft_ids=draft_ids, dtype=torch.float64, lively=True)
    goal = DSpineObjective(drafter, Weights(), precision=torch.float64, seed=3)
    learner = Learner(drafter, goal, clip=1e9, anchors_per_sample=6, precision=torch.float64, seed=3)
    moment = Moment(step=5, epoch=0, learning_rate=0.0, beta=0.4, replacement=0.5)
    results = []
    for cut in ([[0, 1, 2, 3]], [[0], [1], [2], [3]], [[3, 1], [2, 0]]):
        parts = [rows_from(batch, part) for part in cut]
        drafter.zero_grad()
        report = learner.gradients(parts, moment)
        results.append((report, {name: p.grad.clone() for name, p in drafter.named_parameters()}))
    (first, gradient), *others = results
    assert first.tokens > 0
    for report, other in others:
        assert (report.blocks, report.tokens) == (first.blocks, first.tokens)
        assert report.loss == pytest.approx(first.loss, rel=1e-10)
        for name in gradient:
            scale = gradient[name].abs().max()
            torch.testing.assert_close(other[name] / scale, gradient[name] / scale, rtol=0, atol=1e-10, msg=name)


def test_empty_denominators_give_zero():
    """No label inside the draft vocabulary: the cross-entropies are 0, and so is λ; nothing is NaN."""
    s = setting(tuple(range(260, 320)))
    terms = s.terms(s.states())
    means = terms.means()
    assert terms.denominators[0] == 0
    assert terms.denominators[2] == 0
    assert means[0] == 0
    assert means[2] == 0
    gradient = gradients(s.drafter, window_loss(terms, Terms.total([terms]), alpha=0.1, beta=0.5))
    assert all(g.isfinite().all() for g in gradient.values())
    assert any(g.abs().max() > 0 for g in gradient.values())


def test_nothing_supervised_gives_zero_and_no_gradient():
    s = setting()
    s.blocks.supervised.zero_()
    terms = s.terms(s.states())
    loss = window_loss(terms, Terms.total([terms]), alpha=0.1, beta=0.5)
    assert loss.item() == 0
    assert all(g.abs().max() == 0 for g in gradients(s.drafter, loss).values())


def test_a_dropped_block_is_as_one_that_was_never_there():
    s = setting()
    dropped = replace(s.blocks, supervised=s.blocks.supervised.clone(), valid=s.blocks.valid.clone())
    dropped.supervised[:, 1:] = False
    dropped.valid[:, 1:] = False
    alone = Blocks(*(x[:, :1] for x in (dropped.anchors, dropped.valid, dropped.tokens, dropped.supervised)))
    found = []
    for blocks in (dropped, alone):
        one = Setting(s.drafter, s.batch, blocks, s.replaced[:, : blocks.valid.shape[1]])
        found.append(gradients(s.drafter, one.terms(one.states()).sums.sum()))
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-9, atol=1e-12, msg=name)


def test_nothing_at_or_behind_the_anchor_reaches_a_block():
    """Features from the anchor on and tokens behind it: same states, bit for bit; the feature before it does."""
    s = setting()
    place = int(s.blocks.anchors[0, 1])
    one = [x[:1, 1:2] for x in (s.blocks.anchors, s.blocks.tokens)]

    def states(features, tokens=one[1]):
        return s.drafter.blocks(features, s.batch.lengths[:1], one[0], tokens).hidden

    clean = states(s.batch.features[:1])
    noisy, before, tokens = s.batch.features[:1].clone(), s.batch.features[:1].clone(), one[1].clone()
    noisy[:, place:] += 1
    before[:, place - 1] += 1
    tokens[..., 1:] = 7
    assert torch.equal(states(noisy), clean)
    assert torch.equal(states(s.batch.features[:1], tokens), clean)
    assert not torch.equal(states(before), clean)


def test_overlapping_blocks_do_not_see_each_other():
    """Two anchors, two tokens apart: their sums are those of each alone."""
    s = setting(responses=(12,))
    anchors = [torch.tensor([7, 9]), torch.tensor([7]), torch.tensor([9])]
    sums = []
    for drawn in anchors:
        blocks = cut_blocks(s.batch.ids, s.batch.loss_mask, s.batch.lengths, [drawn], s.drafter.candidates)
        one = Setting(s.drafter, s.batch, blocks, torch.zeros_like(blocks.valid))
        sums.append(one.terms(one.states()).sums.detach())
    torch.testing.assert_close(sums[0], sums[1] + sums[2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_gradients_of_half_precision_products(precision):
    """The vocabulary loss in float32 and with bfloat16 products, against float64."""
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(300, 64, generator=generator).bfloat16().double()
    hidden = (0.3 * torch.randn(40, 64, generator=generator)).bfloat16().double()
    teacher_hidden = (0.3 * torch.randn(40, 64, generator=generator)).bfloat16().double()
    lse = (teacher_hidden @ head.T).logsumexp(-1)
    labels = torch.randint(0, 300, (40,), generator=generator)

    def gradient(dtype: torch.dtype, products: torch.dtype) -> Tensor:
        leaf = hidden.to(dtype).clone().requires_grad_()
        found = ordinary_terms(
            leaf,
            DraftVocabulary.of(head.to(dtype), None, precision=products),
            labels,
            torch.ones(40, dtype=dtype),
            Teacher(teacher_hidden.to(dtype), lse.to(dtype)),
            candidates=4,
            chunk=16,
        )
        (0.1 * found.ce + 0.9 * found.l1).backward()
        return leaf.grad.double()

    exact = gradient(torch.float64, torch.float64)
    error = (gradient(torch.float32, precision) - exact).norm() / exact.norm()
    assert error < (1e-5 if precision == torch.float32 else 1e-2)


def test_the_teacher_is_exact_under_bfloat16_products():
    """Its logsumexp comes from float32 logits: probabilities from coarser ones would not sum to 1."""
    generator = torch.Generator().manual_seed(0)
    head, hidden = torch.randn(300, 64, generator=generator), torch.randn(20, 64, generator=generator)
    law = (hidden.double() @ head.double().T).softmax(-1)
    lse = (hidden.double() @ head.double().T).logsumexp(-1).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = ordinary_terms(
            torch.randn(20, 64, generator=generator),
            DraftVocabulary.of(head, None, precision=torch.bfloat16),
            torch.zeros(20, dtype=torch.int64),
            torch.ones(20),
            Teacher(hidden, lse),
            candidates=5,
            chunk=7,
        )
    exact = law.gather(1, found.candidates)
    torch.testing.assert_close(found.candidate_probs.double(), exact, rtol=1e-4, atol=1e-9)
