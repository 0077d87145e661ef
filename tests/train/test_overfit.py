"""Fixture F5: a drafter that has learned 32 answers by heart must draft them almost whole.

This holds only if training and decoding agree on positions, masks, features, taps, weights and vocabulary, so it
catches almost every mismatch between the two at once. Ten seconds of one core.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.drafter.dspine import DSpine
from dspine.kernels.law import Law
from dspine.kernels.reference import walk
from dspine.target.model import Target
from dspine.train.blocks import cut_blocks
from dspine.train.learner import Learner, Moment
from dspine.train.measure import measure_tau
from dspine.train.objectives.dspine import DSpineObjective, Weights
from dspine.train.responses import ResponseRow
from dspine.train.sequences import SequenceBatch, online_batch

PROMPT, NEW, STEPS = 6, 13, 200
PARAMS = SamplingParams(temperature=0.0, max_new_tokens=NEW, ignore_eos=True)


@dataclass
class Learned:
    target: Target
    drafter: DSpine
    prompts: list[list[int]]
    batch: SequenceBatch  # the answers it was trained on


@pytest.fixture(scope="module")
def learned() -> Learned:
    target = tiny_target(initializer_range=0.8)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 250, (PROMPT,), generator=generator).tolist() for _ in range(32)]
    answers = [list(c.token_ids) for c in Engine(target, max_batch=32).generate(prompts, PARAMS)]
    rows = [
        ResponseRow(str(i), "test", [], prompt, answer, "length")
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    drafter = tiny_drafter(target)
    goal = DSpineObjective(drafter, Weights(), precision=torch.float32, seed=0)
    learner = Learner(drafter, goal, clip=1.0, anchors_per_sample=6, precision=torch.float32, seed=0)
    batch = online_batch(target, rows, drafter.target_layer_ids)
    for step in range(STEPS):
        rate = 1e-2 * min(1.0, (step + 1) / 10) * (1 - step / STEPS)
        replacement = 0.5 if step < STEPS / 6 else 0.0
        learner.step([batch], Moment(step, step, rate, min(0.5, step / 20), replacement))
    return Learned(target, drafter.eval(), prompts, batch)


def test_acceptance_approaches_the_block_size(learned):
    acceptance = measure_tau(learned.target, learned.drafter, learned.prompts, max_new_tokens=NEW)
    assert acceptance.tau > 3.5, "of 4"
    assert acceptance.tau_unrefined > 3.5
    assert acceptance.prompts == 32


def test_the_engine_accepts_what_the_training_forward_says(learned):
    """Every round of every answer: the accept length follows from the training pass at the round's anchor."""
    engine = Engine(learned.target, learned.drafter, max_batch=32)
    completions = engine.generate(learned.prompts, PARAMS)
    for row, completion in enumerate(completions):
        assert list(completion.token_ids) == learned.batch.ids[row, PROMPT : PROMPT + NEW].tolist()
        expected = accept_lengths(learned, row, completion)
        assert [r.accepted for r in completion.rounds] == expected


@torch.no_grad()
def accept_lengths(learned: Learned, row: int, completion: Completion) -> list[int]:
    """What the drafter's training forward would have had accepted, round by round."""
    anchors = [PROMPT]
    for record in completion.rounds[:-1]:
        anchors.append(anchors[-1] + record.kept)
    batch, drafter = learned.batch, learned.drafter
    one = slice(row, row + 1)
    blocks = cut_blocks(
        batch.ids[one], batch.loss_mask[one], batch.lengths[one], [torch.tensor(anchors)], drafter.candidates
    )
    states = drafter.blocks(batch.features[one], batch.lengths[one], blocks.anchors, blocks.tokens)
    candidates = drafter.top_candidates(states.hidden[0])
    scores = drafter.transition_cache(states.last[0], blocks.tokens[0, :, 0], candidates)
    chosen, _ = walk(scores, Law.greedy_rows(len(anchors)), None)
    drafted = candidates.gather(2, chosen[..., None])[..., 0]
    right = (drafted == blocks.labels[0]).long().cumprod(-1)
    return [int(right[i, : record.proposed].sum()) for i, record in enumerate(completion.rounds)]
