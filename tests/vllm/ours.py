"""Our own engine beside vLLM, and the blocks that it drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.vllm.engines import Block

from dspine import SamplingParams, load_drafter, load_target
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.target.model import Target


@dataclass
class Ours:
    """Our engine with a drafter; `blocks` are those that it drafted since they were last emptied."""

    target: Target
    engine: Engine
    blocks: list[Block] = field(default_factory=list)

    @classmethod
    def load(cls, drafter: str | Path, target: Target | None = None) -> Ours:
        target = target or load_target("nano", packed=False)
        network = load_drafter(drafter, target, packed=False)
        ours = cls(target, Engine(target, network))
        propose = network.propose

        def watched(cache: Any, first: int, anchors: Any, law: Any, uniforms: Any) -> Any:
            proposal = propose(cache, first, anchors, law, uniforms)
            ours.blocks += map(Block, anchors.tolist(), proposal.tokens.tolist())
            return proposal

        network.propose = watched
        return ours

    def answers(self, prompts: Sequence[list[int]], **sampling: Any) -> list[Completion]:
        return self.engine.generate(prompts, SamplingParams(**{"ignore_eos": True, **sampling}))

    def drafting(self, prompt: list[int], **sampling: Any) -> tuple[list[int], list[Block]]:
        """The answer to one prompt, and the blocks that were drafted for it."""
        self.blocks.clear()
        [completion] = self.answers([prompt], **sampling)
        return list(completion.token_ids), list(self.blocks)
