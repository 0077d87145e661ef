"""Hand-made files of every kind of results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspine.decode.records import RoundRecord
from dspine.evaluate.answers import AnswerRecord
from dspine.evaluate.results import ACCEPTANCE, DECODED, LAB, PROBE, THROUGHPUT, ResultFile
from dspine.evaluate.summary import summarise

SETTINGS = {"target": "nano", "dtype": "float32", "device": "cpu", "max_new_tokens": 64, "split": "report"}
INTERVAL = {"low": 0.4, "high": 0.6}


def summary(*kept: int) -> dict[str, Any]:
    """Of one answer a number, of twenty rounds that keep it."""
    answers = [
        AnswerRecord(str(n), "t", "", tuple(range(1 + 20 * k)), "", "stop", (RoundRecord(7, k - 1, k),) * 20)
        for n, k in enumerate(kept)
    ]
    return asdict(summarise(answers))


def acceptance(folder: Path, drafter: str, *kept: int, temperature: float = 0.0, **settings: Any) -> Path:
    head = {**SETTINGS, "temperature": temperature, "drafter": f"d-{drafter}", "drafter_name": drafter, **settings}
    lossless = {"compared": 2, "identical": 2, "margins": []}
    lines = [
        {"key": t, "task": t, "summary": summary(*kept), "lossless": lossless, "accuracy": None}
        for t in ("gsm8k", "mbpp")
    ]
    return _file(folder / f"acceptance-{drafter}-{temperature:g}.jsonl", ACCEPTANCE, head, lines)


def throughput(folder: Path, levels: Iterable[int] = (1, 4), stages: bool = True) -> Path:
    lines: list[dict[str, Any]] = []
    quantiles = {"p50": 0.01, "p90": 0.02, "p99": 0.03}
    for level in levels:
        for who, rate in (("plain", 10.0 * level), ("ours", 20.0 * level)):
            lines += [
                {"key": f"run/{level}/{lap}/{who}", "kind": "run", "concurrency": level, "lap": lap, "who": who,
                 "tokens_per_second": rate + lap, "ttft": quantiles, "itl": quantiles, "tpot": 0.02,
                 "tau": 1.0 if who == "plain" else 2.5}
                for lap in range(3)
            ]  # fmt: skip
        lines.append(
            {"key": f"ratio/{level}/ours", "kind": "ratio", "concurrency": level, "who": "ours", "median": 1.9,
             "low": 1.8, "high": 2.0}
        )  # fmt: skip
        times = {"draft/backbone": 0.002, "verify/forward": 0.006, "commit/text": 0.001}
        spent = {"rounds": 5, "stages": times, "draft": 0.002, "verify": 0.006, "other": 0.001}
        lines.append(
            {"key": f"stages/{level}/ours", "kind": "stages", "concurrency": level, "who": "ours", "tau": 2.5,
             "tpot": 0.004, "tpot_model": 0.0032, "round": spent if stages else None}
        )  # fmt: skip
    return _file(folder / "throughput-nano.jsonl", THROUGHPUT, {"target": "nano", "dtype": "float32"}, lines)


def ablation(folder: Path) -> Path:
    runs = [
        {"variant": variant, "seed": seed, "tau": tau + 0.1 * seed, "tau_unrefined": None, "prompts": 6, "rounds": 9,
         "steps": 5, "minutes": 1.5, "drafter": "x", "drafter_digest": "y", "digest": "z"}
        for variant, tau in (("full", 3.0), ("no-gate", 2.8))
        for seed in (0, 1)
    ]  # fmt: skip
    path = folder / "ablation.json"
    path.write_text(json.dumps({"runs": runs}))
    return path


def lab(folder: Path) -> Path:
    tau = {"all": {"mean": 3.0, "low": 2.8, "high": 3.2}, "story": {"mean": 3.0, "low": 2.8, "high": 3.2}}
    places = summary(3)["whole"]["places"]
    lines = [
        {"key": title, "title": title, "parameters": 1_000_000, "minutes": 2.0, "steps": 5, "seeds": [0],
         "tau": {"0.0": tau, "1.0": tau}, "against": None, "places": places, "speedup": 1.5, "draft": 2.0,
         "verify": 6.0, "other": 1.0, "identical": 3, "compared": 3}
        for title in ("DSpine", "DFlash")
    ]  # fmt: skip
    return _file(folder / "lab.jsonl", LAB, {"target": "nano"}, lines)


def probe(folder: Path, what: str) -> Path:
    share = {"accuracy": 0.5, "interval": INTERVAL, "right": 5, "blocks": 10}
    lines: dict[str, list[dict[str, Any]]] = {
        "reader": [
            {"kind": "layer", "layer": layer, "groups": [{"from": 1, "to": 4, **share}, {"from": 5, "to": 7, **share}]}
            for layer in (1, 2)
        ],
        "timing": [
            {"kind": "schedule", "schedule": name, "correct": 2.0, "gain": gain, "interval": {"low": 0.0, "high": 0.2},
             "blocks": 10, "differing": 4, "place": 3}
            for name, gain in (("none", 0.0), ("2+3", 0.1))
        ],
        "predecessor": [
            {"kind": "content", "place": 4, "history": "correct", "predecessor": content, **share}
            for content in ("correct", "predicted")
        ] + [{"kind": "entry", "place": 4, "history": "correct", "entry": "all", "layers": [1, 2], **share}],
        "injection": [
            {"kind": "layer", "layer": layer, "gate": [0.5, 0.4], "cosine": [0.9, None], "blocks": 10}
            for layer in (1, 2)
        ] + [{"kind": "influence", "way": "injection", "layer": n, "distances": [1.0, 0.0], "blocks": 9}
            for n in (1, 2)],
    }  # fmt: skip
    head = {**SETTINGS, "probe": what, "drafter_name": "ours", "temperature": 0.0}
    keyed = [{"key": "sequence/0", "kind": "sequence"}] + [
        {"key": str(n), **line} for n, line in enumerate(lines[what])
    ]
    return _file(folder / f"probe-{what}.jsonl", PROBE, head, keyed)


def decoded(folder: Path) -> Path:
    said = [
        ("Six", 0, "first", " Seven"),
        (" <b>", 1, "accepted", "\n"),
        (" eggs", 1, "corrected", " ducks"),
        (".\n", 2, "bonus", "!"),
    ]
    tokens = [
        {"text": text, "round": number, "kind": kind, "chance": 0.75, "runner_up": other, "runner_up_chance": 0.125}
        for text, number, kind, other in said
    ]
    line = {"key": "gsm8k/3", "task": "gsm8k", "prompt": "How <many>?", "finish": "stop", "rounds": 2, "kept": 3}
    head = {**SETTINGS, "temperature": 0.0, "drafter_name": "ours"}
    return _file(folder / "decoded-ours.jsonl", DECODED, head, [{**line, "tokens": tokens}])


def everything(folder: Path) -> None:
    """A file of each kind."""
    for each in (acceptance(folder, "ours", 3, 4), acceptance(folder, "theirs", 2), throughput(folder)):
        assert each.exists()
    for make in (ablation, lab, decoded):
        make(folder)
    for what in ("reader", "timing", "predecessor", "injection"):
        probe(folder, what)


def _file(path: Path, form: str, head: dict[str, Any], lines: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ResultFile(path, form, head).add(lines)
    return path
