"""`dspine chat`: a conversation that remembers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dspine.cli import options as o
from dspine.cli.console import answer, complain, note
from dspine.cli.models import Models, choose_drafter, fastest_dtype, open_models, why_plain
from dspine.errors import RequestError

if TYPE_CHECKING:
    from dspine.answer import Answer
    from dspine.decode.sampling import SamplingParams

_HELP = "/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer."


def chat(
    target: o.TargetOption = "smollm2",
    drafter: o.DrafterOption = None,
    no_drafter: o.NoDrafterOption = False,
    dtype: o.DtypeOption = None,
    device: o.DeviceOption = None,
    verify: o.VerifyOption = None,
    measure: o.MeasureOption = False,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    rollback: o.RollbackOption = o.RollbackChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    system: o.SystemOption = None,
    thinking: o.ThinkingOption = False,
    temperature: o.TemperatureOption = 0.0,
    top_k: o.TopKOption = 0,
    top_p: o.TopPOption = 1.0,
    min_p: o.MinPOption = 0.0,
    repetition_penalty: o.RepetitionPenaltyOption = 1.0,
    seed: o.SeedOption = None,
    max_new_tokens: o.MaxNewTokensOption = 512,
    stop: o.StopOption = None,
) -> None:
    """Talk with the model. /reset forgets the conversation, /exit leaves, Ctrl-C stops an answer.

    Examples:

        dspine chat

        dspine chat --system "You answer in one sentence." --temperature 0.7 --top-p 0.9
    """
    params = o.sampling_params(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
    )
    chosen = choose_drafter(target, drafter, no_drafter, rollback)
    verified = o.verify_choice(verify, why_plain(target, no_drafter) if chosen is None else None, measure)
    models = open_models(
        target,
        chosen,
        dtype=dtype or fastest_dtype(device),
        device=device,
        thinking=thinking,
        verify=verified,
        measure=measure,
        kernels=kernels.value,
        rollback=rollback,
        capture=capture.value,
    )
    conversation = Conversation(models, params, system, thinking)
    if sys.stdin.isatty():
        note(_HELP)
    while (line := _read()) is not None:
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            note("The conversation is forgotten.")
        elif line.startswith("/"):
            note(_HELP)
        elif line:
            _take_turn(conversation, line)


@dataclass
class Conversation:
    """Messages so far, and the models that answer them."""

    models: Models
    params: SamplingParams
    system: str | None = None
    thinking: bool = False
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, question: str) -> Answer:
        """Answer a question, printing the answer while it grows.

        A question that is refused or whose answer is broken off leaves the conversation as it was.

        Raises:
            RequestError: the conversation no longer fits the model's context.
        """
        from dspine.answer import follow
        from dspine.target.chat import render

        asked = [*self.messages, {"role": "user", "content": question}]
        prompt = render(self.models.target, asked, thinking=self.thinking)
        given = follow(self.models.engine, prompt, self.params, answer)
        self.messages = [*asked, {"role": "assistant", "content": given.completion.text}]
        return given


def _take_turn(conversation: Conversation, question: str) -> None:
    try:
        given = conversation.ask(question)
    except RequestError as fault:
        complain(fault.what, "/reset forgets the conversation and makes room.")
        return
    except KeyboardInterrupt:
        answer("\n")
        note("Stopped; this turn is forgotten.")
        return
    answer("\n")
    tokens = given.completion.usage.completion_tokens
    note(f"tau {given.completion.tau:.2f}, {tokens} tokens, {given.tokens_per_second:.1f} tokens/s")


def _read() -> str | None:
    """The next line of the user, None at the end of the input."""
    try:
        if not sys.stdin.isatty():
            line = sys.stdin.readline()
            return line.strip() if line else None
        import readline  # noqa: F401  gives input() its line editing and history

        return input("> ").strip()
    except EOFError:
        answer("\n")
        return None
