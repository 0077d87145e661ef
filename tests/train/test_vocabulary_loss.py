"""The teacher's law stays exact when the drafter's products are bfloat16 (DSpine, training: teacher p_t)."""

from __future__ import annotations

import torch

from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher, ordinary_terms


def test_the_teachers_law_sums_to_one_under_bfloat16():
    torch.manual_seed(0)
    head = torch.randn(200, 64)
    states, hidden = torch.randn(12, 64) * 2, torch.randn(12, 64)  # logits of some tens, as a real model's
    logits = states @ head.T
    teacher = Teacher(states, logits.logsumexp(-1))
    vocabulary = DraftVocabulary.of(head, None, precision=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = ordinary_terms(
            hidden, vocabulary, torch.zeros(12, dtype=torch.int64), torch.ones(12), teacher, candidates=200, chunk=5
        )
    expected = logits.softmax(-1).gather(1, terms.candidates)
    torch.testing.assert_close(terms.candidate_probs, expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(terms.candidate_probs.sum(-1), torch.ones(12), atol=1e-5, rtol=0)
