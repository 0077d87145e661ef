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
WAITS = 1  # of the host for the device, in a round
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
        best = _best("dspine", batch, found)
        staged = next((found[n, batch] for n in ("dspine, fused", "dspine") if (n, batch) in found), None)
        if best is None or staged is None:
            continue
        heads = sum(staged.get(stage, 0.0) for stage in HEAD_STAGES)
        for rival in ("dspark", "domino"):
            theirs = found.get((rival, batch), {})
            serial = theirs.get("draft/walk", 0.0)  # correction and choice, place after place; the head is before it
            if serial:
                out.append(line(f"scoring + walk beside {rival}'s head, batch {batch}", heads / serial, HEADS, "x"))
        rival = _best("dflash2", batch, found)
        if rival is not None:
            what = f"draft of {best} beside that of {rival}, batch {batch}"
            out.append(line(what, found[best, batch]["draft"] / found[rival, batch]["draft"], ROUND, "x"))
    for (name, batch), spent in found.items():
        if name.endswith("captured") and "syncs" in spent:
            out.append(line(f"host waits inside a draft of {name}, batch {batch}", spent["syncs"], 0, ""))
    return out


def _best(drafter: str, batch: int, found: dict[tuple[str, int], Any]) -> str | None:
    """How the drafter was run, as the engine would."""
    ways = (f"{drafter}, captured", f"{drafter}, fused", drafter)
    return next((way for way in ways if (way, batch) in found), None)


def captured(rows: list[dict[str, Any]]) -> list[str]:
    out = []
    eager = {row["batch"]: row["milliseconds"]["round"] for row in rows if row["way"] == "eager"}
    for row in rows:
        batch, spent = row["batch"], row["milliseconds"]
        if row["way"] == "eager":
            continue
        what = f"a round, {row['way']}, beside an eager one, batch {batch} ({row['same']} of {batch} answers the same)"
        out.append(line(what, spent["round"] / eager[batch], 1.0, "x"))
        if "waits" in spent:
            out.append(line(f"host waits in a round, {row['way']}, batch {batch}", spent["waits"], WAITS, ""))
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
    print("whole rounds", *captured(read(folder, "captured")), sep="\n")
    sys.exit(any(code != "0" for _, code, _ in steps))


if __name__ == "__main__":
    main()
