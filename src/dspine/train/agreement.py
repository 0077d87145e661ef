"""Does the engine accept what the objective counts as right? The first places of its rounds, both ways.

One rule: what is compared is the very forward, with its labels, that training learns by; see `dspine.decode.agreement`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dspine.decode.agreement import Agreement, begun
from dspine.decode.records import Completion
from dspine.target.model import Target
from dspine.train.blocks import cut_blocks
from dspine.train.objectives.objective import Moment, Objective, Terms
from dspine.train.responses import ResponseRow
from dspine.train.sequences import online_batch

AT_ONCE = 4  # answers of one pass
NOW = Moment(step=0, epoch=0, learning_rate=0.0)


@torch.no_grad()
def first_places(
    target: Target, objective: Objective, taps: Sequence[int], candidates: int, completions: Sequence[Completion]
) -> Agreement | None:
    """Compare over greedy answers; None where there was no round to compare.

    Args:
        objective: of the drafter that made the answers, with M = `candidates`; taps: its layer ids.
    """
    drafted = [completion for completion in completions if begun(completion)]
    parts: list[Terms] = []
    for first in range(0, len(drafted), AT_ONCE):
        some = drafted[first : first + AT_ONCE]
        anchors = [torch.tensor([anchor for anchor, _ in begun(each)], dtype=torch.int64) for each in some]
        rows = [
            ResponseRow(str(i), "", [], list(c.prompt_ids), list(c.token_ids), c.finish_reason)
            for i, c in enumerate(some)
        ]
        batch = online_batch(target, rows, taps)
        inside = torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
        batch = replace(batch, loss_mask=inside)  # a kind that drafts from the prompt's end is held to it as well
        parts.append(objective.terms(batch, cut_blocks(batch.ids, inside, batch.lengths, anchors, candidates), NOW))
    return Agreement.of(Terms.total(parts).by_place()[0][0], drafted) if parts else None
