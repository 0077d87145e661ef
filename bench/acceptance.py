"""Acceptance length of a drafter by prompt family, and whether drafting changed the output.

    python bench/acceptance.py --data-dir DATA

tau = kept tokens / rounds, pooled over the requests of a family, the prefill's token in no round; the interval is a
bootstrap over requests (95 %). A small model loops, and loops draft perfectly: "before loops" leaves out what an answer
says from the third start of a 16-gram on. The other columns are the same rounds by other people's definitions.

Every answer is kept in a file under --out, one file a drafter and temperature, and the same command goes on where it
was stopped. Greedy answers are compared with those of plain decoding, which are kept there too, for all drafters: a
first difference is counted, with the target's margin there. Choose a drafter on `--split tune`, and report it on the
other prompts. It prints Markdown; --json writes everything, rates by place with their counts included.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch

from dspine.checkpoint import drafter_digest, load_drafter
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.errors import DspineError
from dspine.evaluate.acceptance import Place
from dspine.evaluate.answers import AnswerFile, AnswerRecord
from dspine.evaluate.collect import Question, collect
from dspine.evaluate.margin import first_margin
from dspine.evaluate.prompts import SEED, TaskPrompt, texts_digest
from dspine.evaluate.summary import Figures, Summary, summarise
from dspine.progress import Meter
from dspine.target import Target, load_target
from dspine.target.chat import render, template_digest
from prompts import FAMILIES, family_prompts


@dataclass(frozen=True)
class Family:
    """The prompts of a family, as texts and as token ids."""

    name: str
    prompts: list[TaskPrompt]
    questions: list[Question]

    @classmethod
    def of(cls, name: str, prompts: list[TaskPrompt], target: Target) -> Family:
        ids = [render(target, [{"role": "user", "content": prompt.text}]) for prompt in prompts]
        return cls(name, prompts, [Question(p.id, name, row) for p, row in zip(prompts, ids, strict=True)])


@dataclass(frozen=True)
class Row:
    """What was measured on a family.

    margins: the target's margins, in logits, where drafted and plain answers first differ, one an answer that does;
        None if they were not compared.
    """

    family: str
    digest: str
    summary: Summary
    margins: list[float] | None


@dataclass(frozen=True)
class Bench:
    """The models, and where their answers are kept."""

    target: Target
    drafted: Engine
    plain: Engine | None
    drafter_digest: str
    out: Path

    def rows(self, families: Sequence[Family], params: SamplingParams) -> list[Row]:
        ours = self.answers(self.drafted, self.drafter_digest, families, params)
        theirs = None
        if self.plain is not None and params.greedy:
            theirs = self.answers(self.plain, None, families, params)
        return [
            Row(
                family=family.name,
                digest=texts_digest(family.prompts),
                summary=summarise([ours[question.id] for question in family.questions]),
                margins=None if theirs is None else self.margins(family, ours, theirs),
            )
            for family in families
        ]

    def settings(self, drafter: str | None, params: SamplingParams) -> dict[str, Any]:
        """What an answer depends on, beside its prompt."""
        return {
            "target": self.target.name,
            "head_digest": self.target.head_digest,
            "template_digest": template_digest(self.target),
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "device": self.target.device.type,
            "drafter": drafter,
            "temperature": params.temperature,
            "seed": params.seed,
            "max_new_tokens": params.max_new_tokens,
        }

    def answers(
        self, engine: Engine, drafter: str | None, families: Sequence[Family], params: SamplingParams
    ) -> dict[str, AnswerRecord]:
        """Answers by id, from the file of these settings or made now."""
        settings = self.settings(drafter, params)
        who = "plain" if drafter is None else drafter[:12]
        name = f"{who}-{settings['dtype']}-t{params.temperature:g}-{params.max_new_tokens}"
        questions = [question for family in families for question in family.questions]
        with (
            AnswerFile(self.out / f"{name}.jsonl", settings) as file,
            Meter(name, len(questions), "tokens") as meter,
        ):
            kept = sum(question.id in file.answers for question in questions)
            meter.say(f"{file.path}: {kept} of {len(questions)} answers are there")
            tokens = 0
            for number, answer in enumerate(collect(engine, questions, params, file), start=kept + 1):
                tokens += len(answer.tokens)
                meter.update(number, tokens)
            return file.answers

    def margins(
        self, family: Family, ours: Mapping[str, AnswerRecord], theirs: Mapping[str, AnswerRecord]
    ) -> list[float]:
        margins = (
            first_margin(self.target, asked.prompt_ids, ours[asked.id].tokens, theirs[asked.id].tokens)
            for asked in family.questions
        )
        return [margin for margin in margins if margin is not None]


# ---------------------------------------------------------------- printing

HEAD = (
    "prompts", "count", "digest", "tau", "95 %", "before loops", "95 %", "looped", "tokens cut", "macro (z-lab)",
    "SGLang", "vLLM", "rounds", "same output", "margins",
)  # fmt: skip


def show(settings: Mapping[str, Any], rows: Sequence[Row], args: argparse.Namespace) -> None:
    facts = ", ".join(f"{key} {str(value)[:12]}" for key, value in settings.items() if value is not None)
    print(f"\n{facts}; {args.split} split of the shuffle by {SEED}, batch {args.batch}\n")
    show_table(HEAD, [cells(row) for row in rows])
    widest = range(1, 1 + max(len(row.summary.whole.places) for row in rows))
    conditional = [[row.family, *map(of_reached, row.summary.whole.places)] for row in rows]
    unconditional = [[row.family, *map(of_drafts, row.summary.whole.places)] for row in rows]
    show_table(("accepted of those reached (reached)", *map(str, widest)), conditional)
    show_table(("accepted of all drafts (accepted)", *map(str, widest)), unconditional)


def show_table(head: Sequence[str], rows: Sequence[list[str]]) -> None:
    """Markdown; a row that is shorter than the head is filled up."""
    lines = [list(head), ["---"] * len(head), *([*row, *["-"] * (len(head) - len(row))] for row in rows)]
    print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n")


def cells(row: Row) -> list[str]:
    summary, margins, count = row.summary, row.margins, row.summary.requests
    return [
        row.family,
        str(count),
        f"`{row.digest}`",
        *headline(summary.whole),
        *headline(summary.before_loops),
        f"{summary.looped} of {count}",
        f"{100 * summary.cut:.0f} %",
        f"{summary.whole.tau_macro:.2f}",
        f"{summary.whole.tau_sglang:.2f}",
        f"{summary.whole.tau_vllm:.2f}",
        str(summary.whole.rounds),
        "-" if margins is None else f"{count - len(margins)} of {count}",
        ", ".join(f"{margin:.1e}" for margin in margins or []) or "-",
    ]


def headline(figures: Figures) -> tuple[str, str]:
    return f"**{figures.tau:.2f}**", f"{figures.interval.low:.2f}-{figures.interval.high:.2f}"


def of_reached(place: Place) -> str:
    return f"{place.conditional:.2f} ({place.reached})" if place.reached else "- (0)"


def of_drafts(place: Place) -> str:
    return f"{place.unconditional:.2f} ({place.accepted})"


def finite(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: null and "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="smollm2-135m-dspine")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--split", choices=("report", "tune"), default="report")
    parser.add_argument("--count", type=int, default=50, help="prompts a family")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--temperature", default="0,1", help="one or several, with commas")
    parser.add_argument("--seed", type=int, default=0, help="of sampled answers; each request has its own, made of it")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--no-plain", action="store_true", help="skip the comparison with the plain output")
    parser.add_argument("--out", type=Path, default=Path("runs/acceptance"), help="folder of the answers")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    args = options()
    temperatures = [float(temperature) for temperature in args.temperature.split(",")]
    prompts = {name: family_prompts(args.data_dir, name, args.split, args.count) for name in args.families.split(",")}
    target = load_target(args.target, dtype=getattr(torch, args.dtype) if args.dtype else None)
    bench = Bench(
        target=target,
        drafted=Engine(target, load_drafter(args.drafter, target, thinking=False), max_batch=args.batch),
        plain=None if args.no_plain else Engine(target, max_batch=args.batch),
        drafter_digest=drafter_digest(args.drafter),
        out=args.out,
    )
    families = [Family.of(name, texts, target) for name, texts in prompts.items()]
    report = []
    for temperature in temperatures:
        seed = args.seed if temperature > 0 else None
        params = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=args.max_new_tokens)
        rows, settings = bench.rows(families, params), bench.settings(bench.drafter_digest, params)
        show(settings, rows, args)
        report.append({"settings": settings, "split": args.split, "families": [asdict(row) for row in rows]})
    if args.json is not None:
        args.json.write_text(json.dumps(finite(report), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except DspineError as error:
        sys.exit(f"error: {error}")
