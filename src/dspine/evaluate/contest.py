"""A contest: plain decoding and drafters on the same load, at one number of requests at once after the other.

One rule: speed is a ratio of runs that took turns. At each concurrency everybody warms up at that very concurrency,
then everybody runs in each lap, and who begins changes from lap to lap; a ratio is taken inside a lap, and the spread
over laps is said with it. A lap is whole or it is run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

from dspine.decode.engine import Engine
from dspine.decode.policy import Verify
from dspine.decode.sampling import SamplingParams
from dspine.drafter.proposal import Drafter
from dspine.evaluate.cuda_marks import CudaMarks
from dspine.evaluate.load import serve
from dspine.evaluate.means import forced_means
from dspine.evaluate.round_time import predicted_speedup, round_time
from dspine.kernels.choice import Choice
from dspine.kernels.recording import Capture
from dspine.stages import StageClock
from dspine.target import Target

PLAIN = "plain"
WARM_UP_TOKENS = 8

Line = dict[str, Any]  # a result, with its "key"


@dataclass(frozen=True)
class Contest:
    """Who is measured on what.

    drafters: by the names they go by in the results; plain decoding is always measured.
    prompts: token ids; a load takes as many as it needs in their order, and begins again where they are too few.
    waves: requests of a load are this times the concurrency.
    runs: laps at each concurrency.
    verify: how many candidates of a block to verify, the same for all drafters.
    kernels, capture: as of `Engine`, the same for everybody.
    """

    target: Target
    drafters: Mapping[str, Drafter]
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    waves: int = 2
    runs: int = 3
    verify: Verify = "full"
    kernels: Choice = "auto"
    capture: Capture = "auto"

    @property
    def names(self) -> list[str]:
        return [PLAIN, *self.drafters]

    @property
    def means(self) -> dict[str, str]:
        """Kernels and capture where either is forced, for the head of the results."""
        return forced_means(self.kernels, self.capture)

    def laps(self, concurrency: int, known: Mapping[str, Line]) -> Iterator[list[Line]]:
        """The runs of each lap at a concurrency that are not known yet by their keys; then where rounds spent time.

        Yields:
            what belongs together: a whole lap, or the stages of one drafter.
        """
        open_laps = [lap for lap in range(self.runs) if not self._known(concurrency, lap, known)]
        unclocked = [name for name in self.names if stage_key(concurrency, name) not in known]
        if not open_laps and not unclocked:
            return
        engines = {name: self._engine(name, concurrency) for name in self.names}
        load = list(islice(cycle(self.prompts), concurrency * self.waves))
        warm_up = self.params.model_copy(update={"max_new_tokens": min(WARM_UP_TOKENS, self.params.max_new_tokens)})
        for engine in engines.values():
            serve(engine, load[:concurrency], warm_up, concurrency)
        for lap in open_laps:
            first = lap % len(engines)
            order = self.names[first:] + self.names[:first]
            yield [self._run(engines[name], name, load, concurrency, lap) for name in order]
        for name in unclocked:
            yield [self._stages(engines[name], name, load, concurrency)]

    def ratios(self, concurrency: int, known: Mapping[str, Line]) -> list[Line]:
        """Each drafter's tokens/s over plain ones', lap by lap: median, least and most. For whole laps only."""
        lines = []
        for name in self.drafters:
            rates = [
                [known[run_key(concurrency, lap, who)]["tokens_per_second"] for who in (name, PLAIN)]
                for lap in range(self.runs)
            ]
            ratios = [drafted / plain for drafted, plain in rates]
            spread = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
            key = f"ratio/{concurrency}/{name}"
            lines.append({"key": key, "kind": "ratio", "concurrency": concurrency, "who": name, **spread})
        return lines

    def predictions(self, concurrencies: Sequence[int], known: Mapping[str, Line]) -> list[Line]:
        """The speed-up that each drafter's tau, over all runs, and the cost table promise at other concurrencies.

        None under a schedule that changes the number of candidates: the table speaks of one number.
        """
        if self.verify != "full" and not isinstance(self.verify, int):
            return []
        lines = []
        for name, drafter in self.drafters.items():
            pairs = [line["rounds"] for line in known.values() if line["kind"] == "run" and line["who"] == name]
            rounds = sum(pair[1] for pair in pairs)
            if not rounds:
                continue
            tau = sum(pair[0] for pair in pairs) / rounds
            count = self.verify if isinstance(self.verify, int) else drafter.candidates
            book = self._engine(name, max(concurrencies)).cost_book(max(concurrencies))
            for rows in concurrencies:
                speedup = predicted_speedup(book.covering(rows), rows, count, tau)
                line = {"kind": "prediction", "concurrency": rows, "who": name, "tau": tau, "speedup": speedup}
                lines.append({"key": f"prediction/{rows}/{name}", **line})
        return lines

    def _known(self, concurrency: int, lap: int, known: Mapping[str, Line]) -> bool:
        return all(run_key(concurrency, lap, name) in known for name in self.names)

    def _engine(self, name: str, concurrency: int) -> Engine:
        if name == PLAIN:
            return Engine(self.target, max_batch=concurrency, kernels=self.kernels, capture=self.capture)
        return Engine(
            self.target,
            self.drafters[name],
            max_batch=concurrency,
            verify=self.verify,
            kernels=self.kernels,
            capture=self.capture,
        )

    def _run(self, engine: Engine, name: str, load: Sequence[Sequence[int]], concurrency: int, lap: int) -> Line:
        served = serve(engine, load, self.params, concurrency)
        head = {"key": run_key(concurrency, lap, name), "kind": "run", "concurrency": concurrency, "lap": lap}
        return {**head, "who": name, **served.numbers()}

    def _stages(self, engine: Engine, name: str, load: Sequence[Sequence[int]], concurrency: int) -> Line:
        device = self.target.device
        clock = StageClock(CudaMarks(device) if device.type == "cuda" else None)
        with clock:
            served = serve(engine, load, self.params, concurrency)
        mean, tau = round_time(clock.table()), served.tau
        head = {"key": stage_key(concurrency, name), "kind": "stages", "concurrency": concurrency, "who": name}
        if mean is None or tau is None:  # every answer was one token long
            return {**head, "round": None}
        return {**head, "round": asdict(mean), "tau": tau, "tpot": served.tpot, "tpot_model": mean.tpot(tau)}


def run_key(concurrency: int, lap: int, name: str) -> str:
    """The key of a run's line."""
    return f"run/{concurrency}/{lap}/{name}"


def stage_key(concurrency: int, name: str) -> str:
    """The key of the line that says where rounds spent their time."""
    return f"stages/{concurrency}/{name}"
