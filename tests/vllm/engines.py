"""vLLM engines of nano in this process, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm import LLM
from vllm import SamplingParams as VllmParams
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from dspine.checkpoint.opening import find_drafter
from dspine.target.builtin import shipped

CONTEXT = 1024
STEP = 256  # tokens of a scheduler's step: longer prompts are prefilled in chunks
TOKENS = 7  # nano's block of 8, without its anchor

SETTINGS: dict[str, Any] = {
    "dtype": "float32",  # so that greedy answers can be equal
    "enforce_eager": True,  # compiling takes longer than it saves here
    "max_model_len": CONTEXT,
    "max_num_seqs": 16,
    "max_num_batched_tokens": STEP,
    "seed": 1,
}


def speculative(drafter: str | Path, **more: Any) -> dict[str, Any]:
    """vLLM's setting for a drafter of ours."""
    return {"method": "dflash", "model": str(find_drafter(drafter)), "num_speculative_tokens": TOKENS, **more}


@dataclass
class Block:
    """What was drafted after an anchor."""

    anchor: int
    tokens: list[int]


@dataclass
class Served:
    """A running engine; `drafts` has the blocks of each request id that it drafted since it was last emptied."""

    llm: LLM
    drafts: dict[str, list[Block]] = field(default_factory=dict)

    @classmethod
    def start(cls, drafter: str | Path | None = None, **settings: Any) -> Served:
        if drafter is not None:
            # Counters are the process's, and the engine that started last has them.
            settings = {"speculative_config": speculative(drafter), "disable_log_stats": False, **settings}
        served = cls(LLM(str(shipped("nano") / "target"), **{**SETTINGS, **settings}))
        if drafter is not None:
            served._watch()
        return served

    def answers(self, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[Any]:
        """vLLM's answers to prompts that are sent at once, in their order."""
        self.drafts.clear()
        params = VllmParams(**{"temperature": 0, "ignore_eos": True, **sampling})
        return self.llm.generate([{"prompt_token_ids": [*ids]} for ids in prompts], params, use_tqdm=False)

    def ids(self, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[list[int]]:
        return [list(answer.outputs[0].token_ids) for answer in self.answers(prompts, **sampling)]

    def drafted_for(self, answer: Any) -> list[Block]:
        """The blocks that were drafted for one of the last answers."""
        [name] = [name for name in self.drafts if name.split("-")[0] == answer.request_id]
        return self.drafts[name]

    def counted(self, name: str) -> float:
        """A counter of vLLM's metrics."""
        return sum(metric.value for metric in self.llm.get_metrics() if metric.name == f"vllm:spec_decode_num_{name}")

    @property
    def runner(self) -> GPUModelRunner:
        executor = self.llm.llm_engine.engine_core.engine_core.model_executor
        return executor.driver_worker.worker.model_runner

    def _watch(self) -> None:
        runner = self.runner
        propose = runner.drafter.propose

        def watched(*args: Any, **kwargs: Any) -> Any:
            drafted = propose(*args, **kwargs)
            anchors = kwargs["next_token_ids"].tolist()
            names = runner.input_batch.req_ids[: len(drafted)]
            for name, anchor, tokens in zip(names, anchors, drafted.tolist(), strict=True):
                self.drafts.setdefault(name, []).append(Block(anchor, tokens))
            return drafted

        runner.drafter.propose = watched
