"""Decoding requests in ragged batches, with a drafter or without.

One rule: what a request gets depends on its prompt, its parameters and its seed, never on what else is in the
batch, in which order requests came, or which of them were aborted. The engine knows token ids; chat templates are the
caller's.

    engine = Engine(target, drafter)
    [answer] = engine.generate([prompt_ids], SamplingParams(max_new_tokens=64))

When something raises inside a step:

* a request's own logits processor: that request ends where plain decoding would have ended it, with finish reason
  "error" and its exception in `Update.error`; the others go on (`generate` and `stream` raise it to their caller, and
  abort what else they had asked for). Logits that are not numbers end a request in the same way;
* anything else leaves `step` as it is. Every row then stands at its last committed token and requests that were being
  prefilled are back in the queue: the next step goes on from there, with the same results.

An engine belongs to one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from dspine.decode.batch import Batch
from dspine.decode.capture import Recorders, captured
from dspine.decode.costbook import CostBook
from dspine.decode.policy import FULL, Own, Trees, Verify, check_policy, read_verify, split_lookup
from dspine.decode.prefix import Lagged, Scheduled
from dspine.decode.records import Completion, Update
from dspine.decode.request import Request
from dspine.decode.rows import Row
from dspine.decode.sampling import SamplingParams
from dspine.decode.schedule import Adaptive, CostSource, Schedule, Unshared
from dspine.drafter.captured import CapturedDraft
from dspine.drafter.proposal import Drafter, Fusable
from dspine.drafter.transitions import tabulating
from dspine.errors import ConfigError, RequestError
from dspine.kernels.arithmetic import CPU
from dspine.kernels.choice import Choice, choose
from dspine.kernels.recording import Capture
from dspine.target.captured import CapturedForward
from dspine.target.model import Target
from dspine.target.taps import check_taps


class Engine:
    """A target, a drafter, and the requests that are on their way.

    Args:
        target: the model whose output this is.
        drafter: proposes candidates; None decodes one token a round, through the same code.
        max_batch: most requests in progress at once; others wait, first come, first served.
        prefill_chunk: most prompt tokens of a request in one forward.
        verify: how many candidates of a block to verify, see `decode/policy.py`: "full" (all of them), a number,
            "confidence:C" (up to the first of less confidence); or what promises most tokens a second by the costs
            here: "auto" by the acceptance so far (as nodes of a tree, where the drafter tells its transitions, all rows
            are greedy and nothing is recorded), "scheduled" by the confidences of the block, "lagged" by those of
            two rounds ago. Requests that bring a seed are verified in full under these three, since their tokens must
            depend on nothing else, and requests that bring `SamplingParams.verify` by that. "tree:N": trees of N nodes,
            which no request can decline. With "+lookup" behind it: rows that repeat themselves are not drafted, and
            what they said then is verified (`decode/lookup.py`), without a drafter too. Or a `Schedule` of one's own.
        costs: what rounds cost; None: read from the cache folder, and measured where they are not there; "anew":
            measured, whatever is there.
        kernels: "reference" (the plain definitions), "fused" (Triton; see docs/kernels.md), or "auto": fused on CUDA,
            functions of fewer calls on a CPU, where a check finds them equal to the definitions, else the definitions.
            The drafter is set to the same: of several engines that share one, the last that was made decides how it
            drafts.
        capture: "on": drafts and verifications are recorded as CUDA graphs and replayed; "off": they are not; "auto":
            on CUDA those that can be, if a check finds them equal to what they were made of. Or what makes recorders of
            one's own. Rounds with trees are not recorded. See docs/kernels.md.

    Raises:
        ConfigError: max_batch or prefill_chunk below 1, another `verify`, or one that needs confidences or transitions
            where the drafter gives none, or trees of a target that keeps states; `kernels` or `capture` that are
            unknown, or forced where they cannot run.
        TargetError: the drafter taps layers that the target does not have.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        max_batch: int = 8,
        prefill_chunk: int = 256,
        verify: Verify | Schedule = "full",
        costs: CostSource | Literal["anew"] | None = None,
        kernels: Choice = "auto",
        capture: Capture | Recorders = "auto",
    ) -> None:
        for name, value in (("max_batch", max_batch), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise ConfigError(f"{name} is {value}", "give at least 1")
        if drafter is not None:
            check_taps(drafter.target_layer_ids, target.num_layers)
        arithmetic = choose(kernels, target.device, _numbers_of(drafter, target))
        settable: object = drafter
        if isinstance(settable, Fusable):
            settable.kernels = arithmetic
        shortest = 0
        if not isinstance(verify, Schedule):
            verify, shortest = split_lookup(verify)
            if shortest and drafter is None and not isinstance(read_verify(verify), Own):
                raise ConfigError(
                    f"verify is {verify!r} with a lookup, and there is no drafter",
                    'give "full+lookup", or a number in place of full',
                )
        trees = self._trees(verify, capture, target, drafter)
        parts = captured("off" if trees else capture, target, drafter)
        self._target = target
        self._drafter = parts.drafter
        self._parts = parts
        self._fused = arithmetic.fused and arithmetic is not CPU
        self._nodes = trees
        own, schedule = (FULL, Unshared()) if trees else self._chosen(verify, costs, max_batch)
        growing = verify == "auto" and not target.stateful and tabulating(parts.drafter)
        self._batch = Batch(
            target,
            parts,
            schedule,
            own=own,
            nodes=None if growing else trees,
            lookup=shortest,
            capacity=max_batch,
            prefill_chunk=prefill_chunk,
            kernels=arithmetic,
        )
        self._queue: deque[Request] = deque()
        self._live: dict[int, Row] = {}  # rows in progress, those being prefilled included
        self._mail: dict[int, deque[Update]] = {}  # where updates of a running `generate` or `stream` go
        self._loose: list[Update] = []  # updates of all other requests, for `step`
        self._next_id = 0
        self._stepping = False

    @property
    def pending(self) -> int:
        """Requests that have not ended yet."""
        return len(self._queue) + len(self._live)

    @property
    def bytes(self) -> int:
        """Storage of the caches, in bytes."""
        return self._batch.bytes

    @property
    def means(self) -> dict[str, Any]:
        """Which parts of a round are fused kernels or recordings: for the record of what it gave.

        The CPU's own arithmetic, which is the usual one there, is not named.
        """
        recorded = [
            name for name, part in (("forward", self._parts.forward), ("draft", self._drafter)) if _replays(part)
        ]
        return ({"kernels": "fused"} if self._fused else {}) | ({"captured": recorded} if recorded else {})

    def cost_book(self, rows: int, *, anew: bool = False) -> CostBook:
        """What rounds of this engine cost here, for up to `rows` rows.

        Args:
            anew: measure again what the cache folder already knows.

        Raises:
            ConfigError: there is no drafter.
        """
        if self._drafter is None:
            raise ConfigError("rounds without a drafter have no table of costs", "Give the engine a drafter.")
        return CostBook(self._target, self._drafter, capacity=rows, anew=anew, forward=self._parts.forward)

    # ---------------------------------------------------------------- requests one by one

    def add(self, prompt: Sequence[int], params: SamplingParams | None = None) -> int:
        """Queue a request and return its id; `step` works on it.

        Raises:
            RequestError: a prompt or parameters that cannot be honoured.
        """
        request = self._request(prompt, params)
        self._queue.append(request)
        return request.id

    def step(self) -> list[Update]:
        """Prefill the requests that wait, if there is a free row, else run one round of all rows.

        Returns:
            what became of the requests made by `add`, in no particular order. The last update of a request has its
            completion; one that was aborted gets no update.
        """
        self._turn()
        updates, self._loose = self._loose, []
        return updates

    def abort(self, request_id: int) -> Completion | None:
        """End a request, at any time, and free its row.

        Returns:
            what it had got so far, with finish reason "abort"; None if there is no such request or it has ended.
        """
        row = self._live.get(request_id)
        if row is None:
            request = next((r for r in self._queue if r.id == request_id), None)
            if request is None:
                return None
            self._queue.remove(request)
            row = Row(request, self._target.tokenizer, drafting=False)
        if row.finish is not None:
            return None
        row.end("abort")
        self._live.pop(request_id, None)
        if not self._stepping:  # else the step that runs takes the row out at its end
            self._batch.sweep()
        update = row.update()
        self._loose = [waiting for waiting in self._loose if waiting.request_id != request_id]
        if update is not None and request_id in self._mail:
            self._mail[request_id].append(update)
        return None if update is None else update.completion

    # ---------------------------------------------------------------- whole answers

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Answer prompts, all of them, in their order.

        Args:
            prompts: token ids of each prompt.
            params: for all, or one for each; None is greedy with the defaults.

        Raises:
            RequestError: a prompt or parameters that cannot be honoured; nothing is run then.
            Exception: what a request's own logits processor raised.
        """
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(each)} parameter sets for {len(prompts)} prompts", "give one, or one for each")
        requests = [self._request(prompt, own) for prompt, own in zip(prompts, each, strict=True)]
        ended = {u.request_id: u.completion for u in self._deliver(requests) if u.completion is not None}
        return [ended[request.id] for request in requests]

    def stream(self, prompt: Sequence[int], params: SamplingParams | None = None) -> Iterator[Update]:
        """Answer a prompt piece by piece; the last update has the completion. Closing the iterator aborts the request.

        Several streams, and requests made by `add`, may run side by side: whoever asks for more moves all of them on.

        Raises:
            RequestError: at once, for a prompt or parameters that cannot be honoured.
        """
        return self._deliver([self._request(prompt, params)])

    # ---------------------------------------------------------------- inside

    @staticmethod
    def _trees(verify: Verify | Schedule, capture: Capture | Recorders, target: Target, drafter: Drafter | None) -> int:
        """Nodes of a row's tree; 0: there are none."""
        policy = read_verify(verify) if isinstance(verify, int | str) else None
        if not isinstance(policy, Trees) or drafter is None:
            return 0
        if not tabulating(drafter):
            raise ConfigError(
                f"verify is {str(policy)!r}, and this drafter draws place after place",
                "trees are made from the transitions of DSpine, DFlash2, DFlash and a tabulated DSpark; "
                'give "full" or a number',
            )
        if target.stateful:
            raise ConfigError(
                f"verify is {str(policy)!r}, and {target.name} keeps recurrent states, which take in no branches",
                'give "full" or a number',
            )
        if capture not in ("auto", "off"):
            raise ConfigError(f"verify is {str(policy)!r}, and rounds with trees are not recorded", "give capture off")
        return policy.nodes

    def _chosen(
        self, verify: Verify | Schedule, costs: CostSource | Literal["anew"] | None, max_batch: int
    ) -> tuple[Own | None, Schedule]:
        """The rule of all rows, or None and what chooses for them."""
        if isinstance(verify, Schedule):
            return None, verify
        policy, drafter = read_verify(verify), self._drafter
        if drafter is None:  # what is looked up may be bounded
            return policy if isinstance(policy, Own) else FULL, Unshared()
        assert not isinstance(policy, Trees)  # found before
        check_policy(policy, drafter)
        if isinstance(policy, Own):
            return policy, Unshared()
        book = self.cost_book(max_batch, anew=costs == "anew") if costs is None or costs == "anew" else costs
        match policy:
            case "auto":
                return None, Adaptive(drafter.candidates, book)
            case "scheduled":
                return None, Scheduled(book)
            case "lagged":
                return None, Lagged(book)

    def _request(self, prompt: Sequence[int], params: SamplingParams | None) -> Request:
        request = Request.checked(self._next_id, prompt, params or SamplingParams(), self._target, self._drafter)
        if self._nodes and request.own is not None:
            raise RequestError("verify: this engine verifies trees, whatever a request asks for", "leave verify out")
        self._next_id += 1
        return request

    def _deliver(self, requests: Sequence[Request]) -> Iterator[Update]:
        """Queue requests and yield their updates until all have ended; whatever stops this ends them."""
        mail: deque[Update] = deque()
        waiting = {request.id for request in requests}
        self._mail.update((number, mail) for number in waiting)
        self._queue.extend(requests)
        try:
            while waiting:
                while not mail:
                    self._turn()
                update = mail.popleft()
                if update.error is not None:
                    raise update.error
                if update.finished:
                    waiting.remove(update.request_id)
                yield update
        finally:
            for request in requests:
                self._mail.pop(request.id, None)
                self.abort(request.id)

    def _turn(self) -> None:
        """One prefill or one round, and the updates that come of it to whom they belong."""
        if self._stepping:
            raise RuntimeError("the engine is inside a step already, and cannot be stepped from within")
        self._stepping = True
        try:
            if self._queue and self._batch.free:
                self._admit()
            elif self._batch.rows:
                self._batch.advance()
        except BaseException:
            self._batch.settle()
            raise
        finally:
            self._stepping = False
            self._batch.sweep()
        self._post()

    def _admit(self) -> None:
        """Give the free rows to the requests that have waited longest."""
        requests = [self._queue.popleft() for _ in range(min(self._batch.free, len(self._queue)))]
        rows = [Row(request, self._target.tokenizer, drafting=False) for request in requests]
        self._live.update((row.request.id, row) for row in rows)
        try:
            self._batch.admit(rows)
        except BaseException:
            again = [row.request for row in rows if row.finish is None]
            self._queue.extendleft(reversed(again))
            for request in again:
                del self._live[request.id]
            raise

    def _post(self) -> None:
        for number, row in list(self._live.items()):
            update = row.update()
            if row.finish is not None:
                del self._live[number]
            if update is not None:
                self._mail.get(number, self._loose).append(update)


def _numbers_of(drafter: Drafter | None, target: Target) -> torch.dtype:
    """The number format that drafting is computed in: the drafter's own, where it has one."""
    own = getattr(drafter, "dtype", None)
    return own if isinstance(own, torch.dtype) else target.dtype


def _replays(part: object) -> bool:
    return isinstance(part, CapturedForward | CapturedDraft)
