"""What a drafter computes in the engine's rounds is what it computes in training, row by row, whatever was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from tests.support.oracle import OracleCache, OracleDrafter, features_of, oracle
from tests.support.tiny_target import MASK, tiny_target
from torch import Tensor

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter import DSpine, DSpineConfig, TransferSpace
from dspine.drafter.proposal import Proposal
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.target.model import Target

PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt"), tuple(b"3")]
SCRIPTS = [(3, 0, 5, 1), (0, 0, 4), (5, 2, 1, 0, 3)]
TAPS = (0, 2)


def small_dspine(target: Target) -> DSpine:
    config = DSpineConfig.for_target(
        target.facts,
        MASK,
        num_hidden_layers=2,
        target_layer_ids=TAPS,
        transfer_rank=16,
        message_size=8,
        top_k=4,
        block_size=6,
    )
    drafter = DSpine(config, target.embedding, target.head_weight, TransferSpace.fit(target.head_weight, 16))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in drafter.parameters():  # so that gates and writes, zero at the start, do something
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return drafter.eval().requires_grad_(False)


class Twin(OracleCache):
    """The oracle's notes and the real drafter's context cache, moved together."""

    def __init__(self, real: RowCache) -> None:
        super().__init__(real.rows)
        self.real = real

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.real.move(source, target)


@dataclass
class Scripted:
    """Runs a DSpine in every round and keeps its states, but proposes what the oracle says: so accept lengths vary."""

    dspine: DSpine
    oracle: OracleDrafter
    blocks: list[tuple[int, int, Tensor]] = field(default_factory=list)  # anchor's position, anchor, hidden (M, d)

    def __getattr__(self, name: str) -> object:
        return getattr(self.dspine, name)  # sizes

    def new_cache(self, rows: int) -> Twin:
        return Twin(self.dspine.new_cache(rows))

    def observe(self, cache: Twin, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.oracle.observe(cache, span, features, counts, tokens)
        self.dspine.observe(cache.real, span, features, counts, tokens)

    def propose(self, cache: Twin, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        states = self.dspine.draft_block(cache.real, first, anchors)
        for row, anchor in enumerate(anchors.tolist()):
            self.blocks.append((cache.lengths[first + row], anchor, states.hidden[row].clone()))
        return self.oracle.propose(cache, first, anchors, law, uniforms)


@pytest.mark.parametrize("chunk", [4, 256])
def test_the_engines_blocks_equal_the_training_forward(chunk: int) -> None:
    target = tiny_target(
        dtype=torch.float64, num_hidden_layers=4
    )  # exact features, so that only the drafter can differ
    dspine = small_dspine(target)
    assert dspine.dtype == torch.float32
    knowing = oracle(target, PROMPTS, SCRIPTS, block_size=dspine.block_size, taps=TAPS)
    drafter = Scripted(dspine, knowing)
    asked = [SamplingParams(max_new_tokens=cap) for cap in (40, 13, 32)]
    got = Engine(target, drafter, max_batch=2, prefill_chunk=chunk).generate(PROMPTS, asked)

    compared = 0
    for completion in got:
        tokens = [*completion.prompt_ids, *completion.token_ids]
        features = features_of(target, tokens, TAPS)[None]
        position = len(completion.prompt_ids)
        for record in completion.rounds:
            mine = [hidden for at, anchor, hidden in drafter.blocks if (at, anchor) == (position, tokens[position])]
            if record.proposed:
                block = torch.tensor([[[tokens[position]] + [0] * dspine.candidates]])
                states = dspine.blocks(features, torch.tensor([len(tokens)]), torch.tensor([[position]]), block)
                errors = [float((hidden - states.hidden[0, 0]).abs().max()) for hidden in mine]
                assert min(errors) < 1e-5
                compared += 1
            position += record.kept
    assert compared > 20


def test_a_real_drafter_changes_nothing_but_the_number_of_rounds() -> None:
    target = tiny_target(dtype=torch.float64, num_hidden_layers=4)
    dspine = small_dspine(target)
    plain = Engine(target).generate(PROMPTS, SamplingParams(max_new_tokens=20))
    drafted = Engine(target, dspine, max_batch=2).generate(PROMPTS, SamplingParams(max_new_tokens=20))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    sampled = SamplingParams(temperature=8.0, seed=4, max_new_tokens=25, ignore_eos=True)
    together = Engine(target, dspine).generate(PROMPTS, sampled)
    alone = [Engine(target, dspine, prefill_chunk=3).generate([p], sampled)[0] for p in PROMPTS]
    assert [(c.token_ids, c.rounds) for c in together] == [(c.token_ids, c.rounds) for c in alone]
