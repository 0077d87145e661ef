"""One page of what `bench/gpu_check.sh` found: which steps passed, and the figures beside what they are held to.

    python bench/gpu_summary.py runs/gpu_check

It fails if a step failed. A figure that misses its bar is said, and fails nothing: bars hold on the GPU they name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

INJECTION_MS = 0.15  # five injections a round, batch 1, Qwen3-8B sizes
FLOOR, MOVED = 0.7, 64 << 20  # share of the bandwidth floor, for kernels that move this much
HEADS = 0.5  # scoring and walk beside the serial heads of DSpark and of Domino
ROUND = 1.03  # DSpine's draft beside DFlash2's
HEAD_STAGES = ("draft/scores", "draft/walk")


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []


def line(what: str, found: float, bar: float, unit: str) -> str:
    """`found` is meant to be at most `bar`."""
    return f"  {'ok  ' if found <= bar else 'MISS'} {what}: {found:.3f} {unit} (at most {bar:.3f})"


def kernels(rows: list[dict[str, Any]]) -> list[str]:
    out = []
    one = {row["kernel"]: row for row in rows if row["batch"] == 1}
    injected = [one[name]["round_us"] for name in ("neighbour message", "write and norm") if name in one]
    if injected:
        out.append(line("injection kernels a round, batch 1", sum(injected) / 1e3, INJECTION_MS, "ms"))
    for row in rows:
        if row["moved_bytes"] >= MOVED:
            what = f"{row['kernel']}, batch {row['batch']}: time beside its floor"
            out.append(line(what, 1 / row["of_floor"], 1 / FLOOR, "x"))
    return out


def rounds(rows: list[dict[str, Any]]) -> list[str]:
    out = []
    found = {(row["drafter"], row["batch"]): row["milliseconds"] for row in rows}
    for batch in sorted({batch for _, batch in found}):
        best = next((n for n in ("dspine, captured", "dspine, fused", "dspine") if (n, batch) in found), None)
        staged = next((found[n, batch] for n in ("dspine, fused", "dspine") if (n, batch) in found), None)
        if best is None or staged is None:
            continue
        heads = sum(staged.get(stage, 0.0) for stage in HEAD_STAGES)
        for rival in ("dspark", "domino"):
            theirs = found.get((rival, batch), {})
            serial = theirs.get("draft/walk", 0.0)  # correction and choice, place after place; the head is before it
            if serial:
                out.append(line(f"scoring + walk beside {rival}'s head, batch {batch}", heads / serial, HEADS, "x"))
        rival = found.get(("dflash2", batch))
        if rival:
            what = f"draft of {best} beside dflash2's, batch {batch}"
            out.append(line(what, found[best, batch]["draft"] / rival["draft"], ROUND, "x"))
        if "syncs" in found[best, batch]:
            out.append(line(f"host waits inside a draft of {best}, batch {batch}", found[best, batch]["syncs"], 0, ""))
    return out


def main() -> None:
    folder = Path(sys.argv[1])
    steps = [entry.split() for entry in (folder / "steps.txt").read_text(encoding="utf-8").splitlines()]
    print("steps")
    for name, code, seconds in steps:
        print(f"  {'ok  ' if code == '0' else 'FAIL'} {name}: {seconds} s, exit {code}, {folder / name}.log")
    if (folder / "kernels.json").is_file():
        facts = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))["facts"]
        print(f"measured on {facts['device']}" + ("; its times mean nothing" if "CPU" in facts["device"] else ""))
    print("kernels", *kernels(read(folder, "kernels")), sep="\n")
    print("draft rounds", *rounds(read(folder, "round")), *rounds(read(folder, "sampled")), sep="\n")
    sys.exit(any(code != "0" for _, code, _ in steps))


if __name__ == "__main__":
    main()
