"""What the server counts, for Prometheus.

One rule: counters are taken where the engine's updates pass, so that they are right for answers that were broken off
too. Over any window, tau is the rate of `dspine_kept_tokens_total` over that of `dspine_rounds_total`, and the chance
that a candidate stands once all before it do the rate of `dspine_place_accepted_total` over that of
`dspine_place_reached_total`, by place.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dspine.decode.records import RoundRecord, Update

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of one server, in a registry of their own; every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._ended = Counter(
            "dspine_answers", "Answers by how they ended", ["reason"], registry=registry
        )  # stop, length, abort, error
        self._responses = Counter("dspine_responses", "Responses by status", ["status"], registry=registry)
        self._failed_steps = Counter("dspine_failed_steps", "Steps of the engine that raised", registry=registry)
        self._running = Gauge("dspine_running", "Answers in progress", registry=registry)
        self._waiting = Gauge("dspine_waiting", "Answers that wait for their first token", registry=registry)
        self._prompt = Counter("dspine_prompt_tokens", "Prompt tokens of answers that ended", registry=registry)
        self._tokens = Counter("dspine_completion_tokens", "Tokens that were returned", registry=registry)
        self._rounds = Counter("dspine_rounds", "Rounds", registry=registry)
        self._kept = Counter("dspine_kept_tokens", "Tokens that rounds gave (tau = kept / rounds)", registry=registry)
        self._proposed = Counter("dspine_proposed_tokens", "Candidates that were verified", registry=registry)
        self._looked_up = Counter(
            "dspine_looked_up_rounds", "Rounds whose candidates the request's own text offered", registry=registry
        )
        self._landed = Counter("dspine_accepted_tokens", "Candidates that reached the output", registry=registry)
        self._reached = Counter(
            "dspine_place_reached", "Candidates whose predecessors all stood, by place", ["place"], registry=registry
        )
        self._accepted = Counter(
            "dspine_place_accepted", "Candidates that stood, by place", ["place"], registry=registry
        )
        self._first = Histogram(
            "dspine_first_token_seconds", "From a request to its first token", registry=registry, buckets=_SECONDS
        )
        self._whole = Histogram(
            "dspine_answer_seconds", "From a request to the end of its answer", registry=registry, buckets=_SECONDS
        )
        self._pooled = [0, 0]  # kept, rounds
        tau = Gauge("dspine_tau", "Acceptance length since the start: kept tokens / rounds", registry=registry)
        tau.set_function(self.tau)

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def tau(self) -> float:
        """Acceptance length of all rounds so far; 0 before the first."""
        kept, rounds = self._pooled
        return kept / rounds if rounds else 0.0

    def updated(self, update: Update, seconds: float, *, first: bool) -> None:
        """A step gave a request something, `seconds` after it was asked."""
        self._tokens.inc(len(update.token_ids))
        for record in update.rounds:
            self._count_round(record)
        if first:
            self._first.observe(seconds)
        if update.completion is not None:
            self._prompt.inc(update.completion.usage.prompt_tokens)
            self._ended.labels(update.completion.finish_reason).inc()
            self._whole.observe(seconds)

    def aborted(self) -> None:
        """A client went away."""
        self._ended.labels("abort").inc()

    def failed(self) -> None:
        """A request ended with a fault of the server."""
        self._ended.labels("error").inc()

    def failed_step(self) -> None:
        """A step of the engine raised."""
        self._failed_steps.inc()

    def responded(self, status: int) -> None:
        """A response went out."""
        self._responses.labels(str(status)).inc()

    def open(self, running: int, waiting: int) -> None:
        """How many answers are in progress and how many wait."""
        self._running.set(running)
        self._waiting.set(waiting)

    def _count_round(self, record: RoundRecord) -> None:
        self._rounds.inc()
        self._kept.inc(record.kept)
        self._pooled[0] += record.kept
        self._pooled[1] += 1
        self._proposed.inc(record.verified)
        self._landed.inc(record.landed)
        if record.looked_up:  # of no block's places
            self._looked_up.inc()
            return
        for place in range(1, record.reached + 1):
            self._reached.labels(str(place)).inc()
        for place in range(1, record.landed + 1):
            self._accepted.labels(str(place)).inc()
