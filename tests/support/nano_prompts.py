"""Prompts of nano's own text, as ids."""

from __future__ import annotations

from dspine.target.chat import render
from dspine.target.model import Target
from dspine.train.nano.corpus import prompts

SEED = 31


def asked(target: Target, count: int) -> list[list[int]]:
    """`count` prompts that nano was not trained on."""
    return [render(target, row["messages"]) for row in prompts(SEED, count)]


def long(target: Target, tokens: int) -> list[int]:
    """A prompt of exactly `tokens` ids, made of several conversations."""
    ids: list[int] = []
    for prompt in asked(target, 64):
        ids += prompt
        if len(ids) >= tokens:
            return ids[-tokens:]
    raise AssertionError(f"the prompts have {len(ids)} tokens together")
