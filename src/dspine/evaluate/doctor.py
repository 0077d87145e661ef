"""The doctor: why does a drafter accept little?

One rule: a cause is named on evidence. A correction that is tried on the loaded network and lets it predict better
names its cause; what cannot be tried (how prompts are rendered, what codes were rounded to) is named by the record in
the file. Sources: DSpine (arXiv 2609.36173); public failures of drafters, whose commonest symptom is a low acceptance
and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dspine.checkpoint import CheckpointConfig
from dspine.decode.agreement import Agreement, begun
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.drafter.registry import Network
from dspine.errors import DataError
from dspine.evaluate.acceptance import places, tau
from dspine.evaluate.forcing import Forced, Passage, forced
from dspine.evaluate.pair import Pair
from dspine.evaluate.suspects import Gain, gain, suspects, tapped_layers
from dspine.progress import Meter
from dspine.target.model import Target

HEALTHY = "healthy"
FAR = 0.6  # of the tau that the drafter had on held-out prompts when it was trained
SLIGHT = ("codes_rounded",)  # named, and hardly ever why acceptance is low


@dataclass(frozen=True)
class Finding:
    """A cause by name, in words, and what to do; the gain of its correction where one was tried."""

    cause: str
    says: str
    fix: str
    gain: Gain | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What was found of a pair.

    forced: accuracy by place, everything before it correct. generated: acceptance by place once all before it stood.
    first_place: of both, at the anchors that generation had.
    cosine: mean cosine of the last readout and the right token's code; None without codes.
    findings: the likeliest first; none where the drafter is healthy.
    """

    pair: Pair
    tau: float
    prompts: int
    rounds: int
    forced: tuple[float, ...]
    first_place: Agreement
    generated: tuple[float, ...]
    cosine: float | None
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """The likeliest cause, or "healthy"."""
        return self.findings[0].cause if self.findings else HEALTHY

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self), "pair": self.pair.facts()}


def diagnose(
    target: Target,
    drafter: Network,
    config: CheckpointConfig,
    prompts: Sequence[Sequence[int]],
    *,
    thinking: bool = False,
    max_new_tokens: int = 128,
) -> Diagnosis:
    """Examine a loaded pair.

    Args:
        config: of the drafter's folder.
        prompts: token ids of a few prompts like those that it will meet, rendered by the target's template.
        thinking: whether they were rendered with thinking on.

    Raises:
        DataError: the target answers none of them with more than a token.
    """
    pair = Pair.of(target, drafter, config, thinking=thinking)
    params = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens)
    answers = Engine(target, drafter).generate([list(prompt) for prompt in prompts], params)
    rounds = [answer.rounds for answer in answers]
    if not any(map(begun, answers)):
        raise DataError(
            "no prompt has an answer long enough to draft", "Give prompts that the target answers at length."
        )
    trial = _tried(target, drafter, answers)
    found = [*trial.better, *_recorded(pair), *_by_acceptance(trial.first)]
    length = tau(rounds)
    if not found and pair.trained_tau is not None and length < FAR * pair.trained_tau:
        found.append(
            Finding(
                "prompts",
                f"tau is {length:.2f}, and was {pair.trained_tau:.2f} on held-out prompts of its training",
                "These prompts are unlike those that it was trained on: train it on such prompts.",
            )
        )
    return Diagnosis(
        pair=pair,
        tau=length,
        prompts=len(prompts),
        rounds=sum(map(len, rounds)),
        forced=tuple(trial.base.places),
        first_place=trial.first,
        generated=tuple(place.conditional for place in places(rounds)),
        cosine=float(trial.base.cosine[trial.base.known].mean()) if pair.codes else None,
        findings=tuple(sorted(found, key=lambda finding: finding.cause in SLIGHT)),
    )


@dataclass(frozen=True)
class _Trial:
    """What teacher forcing shows: everywhere as the drafter is, the first place at the rounds' anchors, and which
    corrections put something right, the greatest gain first."""

    base: Forced
    first: Agreement
    better: tuple[Finding, ...]


def _tried(target: Target, drafter: Network, answers: Sequence[Completion]) -> _Trial:
    """Let the drafter fill the blocks of the answers, as it is and with every correction."""
    taps = tapped_layers(target, drafter.target_layer_ids)
    passages = [Passage.of(target, answer, taps) for answer in answers if len(answer.token_ids) > 1]
    base = forced(drafter, passages)
    known = list(suspects(target, drafter))
    found: list[tuple[float, Finding]] = []
    with Meter("trials", len(known), "trials") as meter:
        for number, suspect in enumerate(known, start=1):
            brought = gain(base, suspect.tried(drafter, passages))
            if brought.clear:
                says = f"{suspect.says}: {brought.accuracy:+.1%} accuracy a place"
                found.append((brought.accuracy, Finding(suspect.cause, says, suspect.fix, brought)))
            meter.update(number, number)
    found.sort(key=lambda each: -each[0])
    first = Agreement.of(forced(drafter, passages, at_rounds=True).places[0], answers)
    return _Trial(base, first, tuple(finding for _, finding in found))


def _recorded(pair: Pair) -> Iterator[Finding]:
    """What the record in the file and the numbers in memory say by themselves."""
    codes = pair.codes
    if codes is not None and not codes.unit:
        yield Finding(
            "codes", f"codes with norms of {codes.norms[0]:.3f} to {codes.norms[1]:.3f}", "Fetch the checkpoint again."
        )
    if pair.mask_in_text:
        yield Finding(
            "mask_token",
            f"the mask token {pair.mask_token_id} ({pair.mask_token}) is one that texts are made of",
            "Set mask_token_id to the one of the training run: an unused special token, or a row beyond the tokenizer.",
        )
    if pair.thinking_recorded is not None and pair.thinking_recorded != pair.thinking_now:
        words = {True: "on", False: "off"}
        yield Finding(
            "thinking",
            f"trained with thinking {words[pair.thinking_recorded]}, asked with thinking {words[pair.thinking_now]}",
            "Ask as it was trained (--thinking), or train it on such answers.",
        )
    elif pair.same_template is False:
        yield Finding(
            "template",
            "trained with another chat template than the target has now "
            f"({(pair.template_recorded or 'none')[:12]}, now {(pair.template_now or 'none')[:12]})",
            "Use the template of the training run, or train the drafter on answers under this one.",
        )
    if codes is not None and codes.rounded == "float16":
        yield Finding(
            "codes_rounded",
            "the transfer codes were rounded to float16 on their way here",
            "Codes belong in float32: export them again from the checkpoint that was trained.",
        )


def _by_acceptance(first: Agreement) -> Iterator[Finding]:
    if first.doubtful:
        yield Finding(
            "decoding",
            f"place 1 is right at {first.teacher_forced:.1%} of {first.rounds} rounds by the training forward, and "
            f"stood at {first.generated:.1%}",
            "Training and decoding compute different things: positions, mask or features differ. Please report it.",
        )
