"""Calibrating a drafter's confidences on rounds of the real engine.

One rule: held-out prompts, whole blocks, and confidences as the head says them, without the temperatures that it may
have already. Source: DSpark (arXiv 2607.05147), calibration.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspine.decode.calibration import Calibration, Recorder, fit
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.markov import ConfidenceHead
from dspine.drafter.proposal import Drafter
from dspine.target import Target


def calibrate(
    target: Target,
    drafter: Drafter,
    head: ConfidenceHead,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    batch: int,
) -> Calibration:
    """Answer prompts (token ids) and fit the temperatures of their rounds; the head keeps none meanwhile.

    Raises:
        DataError: too few rounds.
    """
    kept, head.temperatures = head.temperatures, None
    recorder = Recorder()
    try:
        engine = Engine(target, drafter, max_batch=batch, verify=recorder)
        engine.generate(prompts, [params.model_copy(update={"seed": n}) for n, _ in enumerate(prompts)])
    finally:
        head.temperatures = kept
    return fit(recorder.rounds, drafter.candidates)
