"""Compile every kernel for an sm_90 GPU, which needs no GPU: what the interpreter takes, the compiler may refuse.

A process of its own: a kernel is either interpreted or compiled. It prints a line a kernel and fails where one does.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dspine.kernels.fused import accept, message, scores, walk, write

TARGET = GPUTarget("cuda", 90, 32)


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], floats: tuple[str, ...] = ()) -> None:
    """`pointers`: types by parameter; parameters that are named nowhere are int32."""
    while not hasattr(kernel, "params"):
        kernel = kernel.fn  # the autotuner's
    types = dict.fromkeys((parameter.name for parameter in kernel.params), "i32")
    types |= pointers | dict.fromkeys(floats, "fp32") | dict.fromkeys(constants, "constexpr")
    made = triton.compile(ASTSource(fn=kernel, signature=types, constexprs=constants), target=TARGET)
    print(kernel.__name__, len(made.asm["cubin"]), "bytes", flush=True)


def main() -> None:
    for kind, precision in (("bf16", "tf32"), ("fp32", "ieee")):
        x, exact = "*" + kind, {"PRECISION": precision}
        sizes = {"WIDE": False, "BLOCK_ROWS": 16, "BLOCK_SIZE": 32, "BLOCK_RANK": 64}
        gates = dict.fromkeys(("said", "receiver_gate", "predecessor_gate", "message", "bias", "out"), x)
        for gather in (True, False):
            pointers = gates | {"codes": "*fp32", "before": "*i64" if gather else "*fp32"}
            compiled(message._message_kernel, pointers, {"GATHER": gather, **sizes, **exact}, ("scale", "tiny"))
        rows = dict.fromkeys(("block", "written", "weight", "out", "normed"), x)
        compiled(write._write_kernel, rows, {"WIDTH": 4096}, ("eps", "tiny"))
        parts = dict.fromkeys(("last", "written", "weight", "head"), x) | {"candidates": "*i64"}
        sums = {"dots": "*fp32", "squares": "*fp32"}
        compiled(scores._part_kernel, parts | sums, {"PART": 512, "TOP": 16, "BLOCK": 128, **exact}, ("tiny",))
        compiled(scores._sum_kernel, sums | {"out": x}, {"TOP": 16}, ("eps",))
        law = dict.fromkeys(("temperature", "top_p", "min_p", "uniforms", "laws"), "*fp32")
        for greedy in (True, False):
            pointers = {"scores": x, "top_k": "*i64", "chosen": "*i64", **law}
            compiled(walk._walk_kernel, pointers, {"GREEDY": greedy, "TOP": 16})
    ids = dict.fromkeys(("tokens", "support", "lengths", "accepted", "chosen", "choices"), "*i64")
    every = ids | dict.fromkeys(("target", "probs", "uniforms"), "*fp32") | {"sums": "*fp64"}
    for one_hot in (True, False):
        form = {"ONE_HOT": one_hot, "TOP": 16, "PART": accept.PART}
        for kernel, more in ((accept._part_kernel, {"PLACES": 16}), (accept._draw_kernel, {"PARTS": 64})):
            taken = {name: kind for name, kind in every.items() if name in kernel.arg_names}
            compiled(kernel, taken, form | more)
    compiled(accept._greedy_kernel, {name: ids[name] for name in ids if name in accept._greedy_kernel.arg_names},
             {"PLACES": 16})  # fmt: skip


if __name__ == "__main__":
    main()
