"""The committed nano drafter: what it is worth, and that it changes nothing."""

from __future__ import annotations

import pytest
import torch

from dspine.checkpoint import load_drafter
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.target import load_target
from dspine.target.chat import render
from dspine.train.nano.corpus import prompts

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=128)


def asked(target, count):
    """Prompts that neither the target nor the drafter was trained on."""
    return [render(target, row["messages"]) for row in prompts(21, count)]


def pair(dtype):
    target = load_target("nano", dtype=dtype)
    return target, load_drafter("nano", target)


def test_its_sizes_are_those_of_the_recipe():
    _, drafter = pair(torch.float32)
    config = drafter.config
    assert (config.num_hidden_layers, config.block_size, config.top_k) == (2, 8, 8)
    assert (config.transfer_rank, config.message_size) == (64, 32)
    assert config.mask_token_id == 3
    assert drafter.draft_ids is None


def test_it_drafts_held_out_prompts_well():
    target, drafter = pair(torch.float32)
    answers = Engine(target, drafter).generate(asked(target, 8), GREEDY)
    rounds = [record for answer in answers for record in answer.rounds]
    assert sum(record.kept for record in rounds) / len(rounds) > 2


@pytest.mark.parametrize("batch", [1, 4])
def test_speculative_answers_are_the_plain_ones(batch):
    target, drafter = pair(torch.float64)
    ids = asked(target, 8)
    plain = Engine(target, max_batch=batch).generate(ids, GREEDY)
    drafted = Engine(target, drafter, max_batch=batch).generate(ids, GREEDY)
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    assert [answer.text for answer in drafted] == [answer.text for answer in plain]
