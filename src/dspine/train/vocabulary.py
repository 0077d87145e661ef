"""The restricted draft vocabulary: which token ids a small machine's drafter may propose.

One rule: the ids that the target itself writes most often in the training responses, ties to the smaller id,
every EOS id always among them. What it costs: a token outside can never be proposed and ends its block. With a
share c of tokens inside, tau is at most about 1 + c + c² + ... + c^M; `coverage` measures c and the training log
prints it.
Source: DSpine (arXiv 2609.36173) uses the full vocabulary; the restriction is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dspine.errors import ConfigError


def most_frequent(responses: Iterable[Sequence[int]], size: int, *, eos_ids: Iterable[int], vocab_size: int) -> Tensor:
    """(size,) int64 ascending: the most frequent ids of the responses, completed by the smallest ids never seen.

    Raises:
        ConfigError: more ids wanted than the target has, or fewer than EOS needs.
    """
    required = sorted(set(eos_ids))
    if not len(required) < size <= vocab_size:
        raise ConfigError(
            f"drafter.draft_vocabulary is {size}; it must be above {len(required)} (EOS) and at most {vocab_size}",
            "Leave it out to draft from the whole vocabulary.",
        )
    counts: Counter[int] = Counter()
    for response in responses:
        counts.update(response)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    chosen = required + [token for token in ranked if token not in required][: size - len(required)]
    return torch.tensor(sorted(chosen), dtype=torch.int64)


def coverage(responses: Iterable[Sequence[int]], ids: Tensor) -> float:
    """Share of response tokens that are among `ids`, in [0, 1]."""
    known = set(ids.tolist())
    inside = total = 0
    for response in responses:
        total += len(response)
        inside += sum(token in known for token in response)
    return inside / max(1, total)
