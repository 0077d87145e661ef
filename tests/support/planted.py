"""A DFlash drafter with a planted truth: one layer attends, evenly, and everything that it knows enters there.

Tokens are unit vectors, so are their features. Layer `at` adds the mean of what it sees to the mask tokens' rows, as
far as `seen` keeps it; the others pass on what they get. The head says π(v) where a state holds v.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspine.drafter.dflash import DFlashConfig, dflash
from dspine.drafter.parallel import ParallelDrafter
from dspine.probe.subject import Subject
from dspine.train.responses import TrainingSequence

WIDTH, TOKENS, NEUTRAL, MASK = 64, 40, 38, 39
CYCLE = 38  # π turns the tokens 0..37 by one


def follower(token: int) -> int:
    """π."""
    return (token + 1) % CYCLE


def head() -> Tensor:
    """(V, d): row π(v) is v's own direction."""
    rows = torch.zeros(TOKENS, WIDTH)
    for token in range(CYCLE):
        rows[follower(token), token] = 1.0
    return rows


@torch.no_grad()
def planted(at: int, seen: Tensor, *, context: bool, layers: int = 3, block_size: int = 8) -> ParallelDrafter:
    """Args:
    at: the layer, from 0. seen: (d, d) what it makes of the unit vectors that it attends to.
    context: whether the context is heard; else the anchor alone.
    """
    config = DFlashConfig(
        hidden_size=WIDTH,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=WIDTH,
        vocab_size=TOKENS,
        num_target_layers=4,
        target_layer_ids=(1,),
        mask_token_id=MASK,
        block_size=block_size,
        max_position_embeddings=256,
    )
    embedding = nn.Embedding(TOKENS, WIDTH)
    embedding.weight.copy_(torch.eye(WIDTH)[:TOKENS])
    drafter = dflash(config, embedding, head())
    backbone = drafter.backbone
    backbone.fc.weight.copy_(torch.eye(WIDTH) * context)
    backbone.norm.weight[MASK] = 0.0
    for index, layer in enumerate(backbone.layers):
        layer.self_attn.q_norm.weight.zero_()  # all scores alike
        layer.self_attn.v_proj.weight.copy_(seen * (index == at))
        layer.self_attn.o_proj.weight.copy_(torch.eye(WIDTH))
        layer.mlp.down_proj.weight.zero_()
    return drafter.eval().requires_grad_(False)


def keeps(*tokens: int) -> Tensor:
    """(d, d): these tokens' directions stay, the others vanish."""
    kept = torch.zeros(WIDTH)
    kept[list(tokens)] = 1.0
    return kept.diag()


def subject(drafter: ParallelDrafter, answers: list[list[int]], blocks: int = 4) -> Subject:
    """The drafter on answers, each behind a neutral prompt; features are unit vectors."""
    prompt = [NEUTRAL] * 5
    sequences = [
        TrainingSequence(f"answer/{number}", prompt + answer, [False] * len(prompt) + [True] * len(answer))
        for number, answer in enumerate(answers)
    ]
    return Subject(drafter, lambda ids: [torch.eye(WIDTH)[torch.tensor(each)] for each in ids], sequences, blocks)
