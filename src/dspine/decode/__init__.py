"""The decode room: from a proposal to a verdict, and from rounds to an answer.

`verify`, `noise`, `sampling` and `processors` are pure and know nothing of models or caches; `engine` runs the rounds.
"""

from __future__ import annotations

from dspine.decode.noise import uniform_rows, uniforms
from dspine.decode.processors import RowProcessor, TokenLogprobs, mask_undecodable, token_logprobs
from dspine.decode.sampling import LogitsProcessor, SamplingParams, law_of
from dspine.decode.verify import Verdict, verify, verify_greedy

__all__ = [
    "LogitsProcessor",
    "RowProcessor",
    "SamplingParams",
    "TokenLogprobs",
    "Verdict",
    "law_of",
    "mask_undecodable",
    "token_logprobs",
    "uniform_rows",
    "uniforms",
    "verify",
    "verify_greedy",
]
