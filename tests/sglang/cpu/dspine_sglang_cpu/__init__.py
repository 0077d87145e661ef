"""What SGLang lacks to run a speculative round on a CPU, as a plugin of its own, installed for tests alone.

One rule: nothing of dspine is changed but the set of devices that it serves on; all else here stands in for a kernel
of SGLang that has no CPU build, and computes what that one does.
"""

from __future__ import annotations

import torch

from dspine_sglang_cpu.absent import Missing

# Looked up when SGLang's backend of gated delta nets is imported; what it computes with them is not run here.
OPERATORS = ("fused_gdn_gating_cpu", "fused_sigmoid_gating_delta_rule_update_cpu")


def register() -> None:
    """The plugin's entry point, called in each of SGLang's processes."""
    from sglang.srt.arg_groups.choices import add_attention_backend_choices, add_draft_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    from dspine.serve.sglang.limits import DEVICES

    DEVICES.add("cpu")
    for name in OPERATORS:
        setattr(torch.ops.sgl_kernel, name, Missing(name))
    add_attention_backend_choices(["plain"])
    add_draft_attention_backend_choices(["plain"])

    @register_attention_backend("plain")
    def make(runner: object) -> object:
        from dspine_sglang_cpu.attention import PlainAttention

        return PlainAttention(runner)

    recorded = torch.Tensor.record_stream

    def record_stream(tensor: torch.Tensor, stream: object) -> None:
        if tensor.device.type != "cpu":  # there are no streams to keep memory from
            recorded(tensor, stream)

    torch.Tensor.record_stream = record_stream
