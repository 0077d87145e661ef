"""Options that several commands share, and the sampling parameters made from them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspine.cli.console import note
from dspine.cli.heavy import uncollected
from dspine.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from dspine.decode.policy import Verify
    from dspine.decode.sampling import SamplingParams

MODEL = "The models"
SAMPLING = "Sampling"
LENGTH = "Length and stops"
OUTPUT = "Output"


class Dtype(StrEnum):
    """Number formats that a target can be loaded in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


class Backend(StrEnum):
    """What computes."""

    torch = "torch"
    mlx = "mlx"


class KernelChoice(StrEnum):
    """Who does a round's arithmetic."""

    auto = "auto"
    reference = "reference"
    fused = "fused"


class RollbackChoice(StrEnum):
    """How the states of a hybrid target are brought back to the accepted place."""

    auto = "auto"
    snapshot = "snapshot"
    replay = "replay"


class CaptureChoice(StrEnum):
    """Whether a round is recorded and replayed."""

    auto = "auto"
    on = "on"
    off = "off"


TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        help="The model: a hub id, a folder, a GGUF file, or a built-in name (smollm2, nano).",
        rich_help_panel=MODEL,
    ),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        "-d",
        help="The drafter: a folder or a shipped name. Default: the one shipped for the target.",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
NoDrafterOption = Annotated[
    bool, typer.Option("--no-drafter", help="Decode plainly, one token a step.", rich_help_panel=MODEL)
]


def _dtype(default: str) -> Any:
    return typer.Option(
        "--dtype",
        help=f"Number format of the target. Default: {default}; on a GPU what the model is stored in.",
        rich_help_panel=MODEL,
        show_default=False,
    )


# Whoever asks for an answer gets the fast format; what is measured or kept is made in the exact one.
DtypeOption = Annotated[Dtype | None, _dtype("bfloat16 on a CPU that multiplies it, float32 on others")]
ExactDtypeOption = Annotated[Dtype | None, _dtype("float32 on a CPU")]
RecipeDtypeOption = Annotated[Dtype | None, _dtype("the recipe's, else float32 on a CPU")]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps.", rich_help_panel=MODEL, show_default=False),
]
BackendOption = Annotated[
    Backend,
    typer.Option(
        help="What computes: torch, or mlx (Apple silicon; `pip install 'dspine[mlx]'`, docs/mlx.md), where --device "
        "is gpu or cpu.",
        rich_help_panel=MODEL,
    ),
]
BitsOption = Annotated[
    int | None,
    typer.Option(
        "--bits",
        metavar="4|8",
        help="Round the target's weights (mlx only).",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
DrafterBitsOption = Annotated[
    int | None,
    typer.Option(
        "--drafter-bits",
        metavar="4|8",
        help="Round the drafter's weights (mlx only).",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]


def _verify(default: str) -> Any:
    return typer.Option(
        "--verify",
        metavar="(auto|full|N|tree:N)[+lookup[:N]]|confidence:C|scheduled|lagged",
        help="How many candidates of a block to verify: full is all; N is fixed; confidence:C stops before the first "
        "candidate whose confidence is below C. What makes most tokens a second here: auto by past rounds, scheduled "
        "by the confidences of the block, lagged by those of two rounds ago; with a seed these three are full, so that "
        "the seed gives the same tokens anywhere. tree:N verifies the N likeliest nodes of a tree instead of one line "
        "(dspine, dflash2, dflash), as auto does with greedy requests. +lookup: where the newest N (3) tokens were "
        "said before, what followed then is verified, and nothing drafted. The answer follows the same law with each. "
        f"Default: {default}.",
        rich_help_panel=MODEL,
        show_default=False,
    )


VerifyOption = Annotated[str | None, _verify("auto+lookup")]
FullVerifyOption = Annotated[str | None, _verify("full")]
MeasureOption = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Measure anew what rounds cost here; else that is done once, where --verify needs it, and kept in the "
        "cache.",
        rich_help_panel=MODEL,
    ),
]
KernelsOption = Annotated[
    KernelChoice,
    typer.Option(
        help="Whose arithmetic a round uses: the plain definitions (reference), or Triton kernels (fused: on CUDA, "
        "with triton installed). auto: fused on CUDA and functions of fewer calls on a CPU, where a check finds them "
        "equal.",
        rich_help_panel=MODEL,
    ),
]
RollbackOption = Annotated[
    RollbackChoice,
    typer.Option(
        help="How states that took in rejected candidates are brought back, for targets with recurrent layers: a copy "
        "a place (snapshot), or the accepted prefix run again (replay). auto: what is quicker here and fits in memory. "
        "Other targets have nothing to bring back and refuse both.",
        rich_help_panel=MODEL,
    ),
]
CaptureOption = Annotated[
    CaptureChoice,
    typer.Option(
        help="Whether drafts and verifications are replayed as CUDA graphs. auto: on CUDA, where a check finds them "
        "equal to what they were made of.",
        rich_help_panel=MODEL,
    ),
]
SystemOption = Annotated[
    str | None, typer.Option(help="System message of the conversation.", rich_help_panel=MODEL, show_default=False)
]
ThinkingOption = Annotated[
    bool,
    typer.Option("--thinking", help="Let the model think first, if its template knows how.", rich_help_panel=MODEL),
]

TemperatureOption = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)]
TopKOption = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.", rich_help_panel=SAMPLING)]
TopPOption = Annotated[
    float, typer.Option(help="Keep the likeliest tokens up to this mass; 1 is off.", rich_help_panel=SAMPLING)
]
MinPOption = Annotated[
    float,
    typer.Option(help="Keep tokens of this chance relative to the likeliest; 0 is off.", rich_help_panel=SAMPLING),
]
RepetitionPenaltyOption = Annotated[float, typer.Option(help="1 is off.", rich_help_panel=SAMPLING)]
PresencePenaltyOption = Annotated[float, typer.Option(help="0 is off.", rich_help_panel=SAMPLING)]
FrequencyPenaltyOption = Annotated[float, typer.Option(help="0 is off.", rich_help_panel=SAMPLING)]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Same seed, same tokens. Default: drawn anew.", rich_help_panel=SAMPLING, show_default=False),
]

MaxNewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", "-n", help="Most tokens to return.", rich_help_panel=LENGTH)
]
MinNewTokensOption = Annotated[int, typer.Option(help="Nothing ends the answer before.", rich_help_panel=LENGTH)]
StopOption = Annotated[
    list[str] | None,
    typer.Option(help="Cut the answer before this string. Repeatable.", rich_help_panel=LENGTH, show_default=False),
]
IgnoreEosOption = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the model's end token.", rich_help_panel=LENGTH)
]

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the recipe. Repeatable.", show_default=False),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for a program to read.", rich_help_panel=OUTPUT)
]


def sampling_params(**fields: Any) -> SamplingParams:
    """The sampling parameters that the words of a command stand for.

    Raises:
        typer.BadParameter: a value that cannot be honoured, named (exit code 2).
    """
    with uncollected():
        from dspine.decode.sampling import SamplingParams

    try:
        return SamplingParams(**fields)
    except RequestError as fault:
        raise typer.BadParameter(fault.what) from fault


def verify_choice(verify: str | None, plain: str | None = None, measure: bool = False) -> Verify:
    """What `--verify` asks for.

    Args:
        plain: why there are no drafts, as `why_plain` says it; None: there are.
        measure: whether the costs that it goes by are to be measured anew.

    Raises:
        typer.BadParameter: no policy that is known, nothing to verify, or one that goes by no costs.
    """
    if plain is not None and measure:
        raise typer.BadParameter(f"{plain} leaves --measure nothing to do")
    if verify is None:
        return "auto+lookup" if plain is None else "auto"
    with uncollected():
        from dspine.decode.policy import SHARED, Own, read_verify, split_lookup

    choice = int(verify) if verify.isascii() and verify.isdigit() else verify
    try:
        rule, lookup = split_lookup(choice)
        policy = read_verify(rule)
    except ConfigError as fault:
        raise typer.BadParameter(f"--verify {verify}: {fault.fix}") from fault
    if plain is not None and not (lookup and isinstance(policy, Own)):
        raise typer.BadParameter(f"{plain} leaves --verify nothing to do but full+lookup or N+lookup")
    if measure and rule not in SHARED:
        raise typer.BadParameter(
            f"--verify {verify} goes by no costs: leave --measure out, or give {', '.join(SHARED)}"
        )
    return choice


def numbers(text: str, option: str) -> list[float]:
    """The numbers of a list with commas.

    Raises:
        typer.BadParameter: naming the option: something there is no number, or is there twice.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text}: give numbers, with commas") from error
    if len(set(found)) < len(found):
        raise typer.BadParameter(f"{option} {text}: a number is there twice")
    return found


def refuse_given(ctx: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options that would be ignored.

    Args:
        names: of the command's parameters.
        why: they say nothing here.

    Raises:
        typer.BadParameter: naming those that the command line gives.
    """
    sources = {name: ctx.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        options = ", ".join("--" + name.replace("_", "-") for name in given)
        raise typer.BadParameter(f"{why}: leave out {options}")


def whole_numbers(text: str, option: str, least: int = 0) -> list[int]:
    """The whole numbers of a list with commas.

    Raises:
        typer.BadParameter: naming the option: something there is no whole number or below `least`, or is there twice.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) >= least for word in words):
        raise typer.BadParameter(f"{option} {text}: give whole numbers from {least} on, with commas")
    found = [int(word) for word in words]
    if len(set(found)) < len(found):
        raise typer.BadParameter(f"{option} {text}: a number is there twice")
    return found


def read_prompt(prompt: str | None) -> str:
    """The prompt of the command line, or standard input when it is `-` or missing.

    Raises:
        RequestError: there is nothing in it, or it is not UTF-8.
    """
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            note("Reading the prompt from standard input; Ctrl-D ends it.")
        try:
            prompt = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not UTF-8: byte {error.start}", "Give it as UTF-8.") from error
    if not prompt.strip():
        raise RequestError("the prompt is empty", 'give one: dspine generate "Why is the sky blue?"')
    return prompt
