"""Captured drafts: what a drafter gives a device to do is recorded once for a number of rows and a length, and
replayed from then on: the draft of a block, and the taking in of a round's features.

One rule: what is recorded reads tensors alone. Anchors, context lengths, sampling parameters, noise and features lie in
buffers that stay where they are; rows behind those that are asked for are whatever the cache has there, and what is
written to them lies behind what they hold. Features of a whole block are taken in each time, and what did not stand is
not committed. Source: DSpine (arXiv 2609.36173), section on kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dspine.drafter.inputs import DraftInputs, IntakeInputs
from dspine.drafter.proposal import Fusable, Proposal, Recordable
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.recording import BUCKETS, STRETCH, CaptureError, Recorder, Recording, Shelf
from dspine.stages import stage, unclocked


@dataclass(frozen=True)
class Draft:
    """A recorded draft with its inputs, and which fields of a proposal its results are."""

    inputs: DraftInputs
    recording: Recording
    fields: tuple[str, ...]

    def again(self, rows: int) -> Proposal:
        """What the first rows propose with the inputs as they are."""
        self.recording.replay()
        return Proposal(**{name: x[:rows] for name, x in zip(self.fields, self.recording.results, strict=True)})


@dataclass(frozen=True)
class Intake:
    """A recorded taking in, with its inputs."""

    inputs: IntakeInputs
    recording: Recording


class CapturedDraft:
    """A drafter that replays its drafts; proposals hold until the next call of `propose`.

    Args:
        network: the drafter.
        recorder: how drafts are recorded.
        forced: raise where something cannot be recorded, instead of going on without recordings, with a warning.
        buckets: numbers of rows, ascending. stretch: slots.
    """

    def __init__(
        self,
        network: Recordable,
        recorder: Recorder,
        *,
        forced: bool = True,
        buckets: Sequence[int] = BUCKETS,
        stretch: int = STRETCH,
    ) -> None:
        self.network = network
        self._recorder = recorder
        self._forced = forced
        self._drafts = Shelf[Draft](buckets=buckets, stretch=stretch)
        self._intakes = Shelf[Intake](buckets=buckets, stretch=stretch)
        self._given_up = False

    @property
    def block_size(self) -> int:
        return self.network.block_size

    @property
    def candidates(self) -> int:
        return self.network.candidates

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.network.target_layer_ids

    @property
    def max_positions(self) -> int:
        return self.network.max_positions

    @property
    def confident(self) -> bool:
        return self.network.confident

    @property
    def kernels(self) -> Kernels:
        """Whose arithmetic is recorded."""
        return self.network.kernels if isinstance(self.network, Fusable) else REFERENCE

    @kernels.setter
    def kernels(self, kernels: Kernels) -> None:
        if isinstance(self.network, Fusable) and kernels is not self.network.kernels:
            self.network.kernels = kernels
            self._drafts.clear()

    @property
    def recordings(self) -> int:
        """How many drafts are held."""
        return len(self._drafts)

    def new_cache(self, rows: int) -> RowCache:
        return self.network.new_cache(rows)

    # ---------------------------------------------------------------- what is replayed

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        if span.width > self.block_size or not self._took_in(cache, span, features, tokens):
            self.network.take_in(cache, span, features, tokens)
        cache.commit_span(span, counts)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        draft = self._draft(cache, first, anchors, law, uniforms)
        if draft is None:
            return self.network.propose(cache, first, anchors, law, uniforms)
        with stage("draft/replay"):
            return draft.again(len(anchors))

    def _draft(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Draft | None:
        """The recording that serves these rows, its inputs filled; None: nothing can be recorded here."""
        if self._given_up or not cache.bytes:  # its first write makes the storage, which is no part of a recording
            return None
        size = self._drafts.rows(len(anchors), cache.rows - first)
        starts = cache.lengths[first : first + size]
        limit = self._drafts.reserved(cache, max(starts) + self.network.draft_width)
        cuts = law.cut != ()

        def record() -> Draft:
            inputs = DraftInputs.of(size, self.candidates, law.greedy, cuts, anchors.device)
            # Filled before: to record is to run, and a run writes at the rows' starts.
            inputs.fill(anchors, starts, law, noise)
            return self._recorded(cache, inputs, DeviceSpan(first, inputs.starts, self.network.draft_width, limit))

        noise = None if law.greedy else uniforms
        try:
            draft = self._drafts.take((first, size, limit, law.greedy, cuts), record)
        except CaptureError as fault:
            self._give_up(fault)
            return None
        draft.inputs.fill(anchors, starts, law, noise)
        return draft

    def _recorded(self, cache: RowCache, inputs: DraftInputs, span: DeviceSpan) -> Draft:
        fields: tuple[str, ...] = ()

        def run() -> list[Tensor]:
            nonlocal fields
            uniforms = None if inputs.law.greedy else inputs.uniforms
            proposal = self.network.propose_at(cache, span, inputs.anchors, inputs.law, uniforms)
            fields, results = proposal.held()
            return results

        with unclocked():
            recording = self._recorder.record(run)
        return Draft(inputs, recording, fields)

    def _took_in(self, cache: RowCache, span: Span, features: Tensor, tokens: Tensor) -> bool:
        """Take in features by a recording; False: nothing can be recorded here."""
        if self._given_up or not cache.bytes:
            return False
        size = self._intakes.rows(span.rows, cache.rows - span.first)
        starts = [*span.starts, *cache.lengths[span.first + span.rows : span.first + size]]
        self._intakes.reserved(cache, max(starts) + self.block_size)

        def record() -> Intake:
            inputs = IntakeInputs.of(size, self.block_size, features)
            inputs.fill(starts, features, tokens)
            where = DeviceSpan(span.first, inputs.starts, self.block_size, cache.capacity)

            def run() -> list[Tensor]:
                self.network.take_in(cache, where, inputs.features, inputs.tokens)
                return []

            with unclocked():
                return Intake(inputs, self._recorder.record(run))

        try:
            intake = self._intakes.take((span.first, size, features.shape[2], features.dtype), record)
        except CaptureError as fault:
            self._give_up(fault)
            return False
        intake.inputs.fill(starts, features, tokens)
        intake.recording.replay()
        return True

    def _give_up(self, fault: CaptureError) -> None:
        if self._forced:
            raise fault
        self._given_up = True
        warnings.warn(f"{fault.what}; drafts go on without recordings, slower", RuntimeWarning, stacklevel=3)
