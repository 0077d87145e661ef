"""A closed loop of requests on an engine: as many in progress as are asked for, the next one begins when one ends.

One rule: the load is the prompts and the parameters, in their order, and the same for everybody who is measured on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.evaluate.served import Load, Served


@dataclass
class _Live:
    """A request on its way: when it was sent, and when its pieces came."""

    sent: float
    pieces: list[float] = field(default_factory=list)


def serve(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams, concurrency: int) -> Load:
    """Serve prompts (token ids, at least one), `concurrency` at a time.

    Raises:
        RequestError: a prompt or parameters that cannot be honoured.
    """
    waiting, live, done = deque(prompts), dict[int, _Live](), list[Served]()
    start = perf_counter()
    try:
        while waiting or live:
            while waiting and len(live) < concurrency:
                sent = perf_counter()
                live[engine.add(waiting.popleft(), params)] = _Live(sent)
            for update in engine.step():
                if update.error is not None:
                    raise update.error
                request = live[update.request_id]
                if update.token_ids:
                    request.pieces.append(perf_counter() - request.sent)
                if update.completion is not None:
                    del live[update.request_id]
                    rounds = update.completion.rounds
                    kept = sum(record.kept for record in rounds)
                    tokens = len(update.completion.token_ids)
                    done.append(Served(tokens, tuple(request.pieces), kept, len(rounds)))
    finally:
        for number in live:
            engine.abort(number)
    return Load(perf_counter() - start, tuple(done))
