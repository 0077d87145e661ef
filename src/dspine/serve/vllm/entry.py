"""What vLLM's registry imports when somebody asks for a DSpine drafter.

One rule: the vLLM at hand is looked at before anything of it that we build on is imported.
"""

from __future__ import annotations

import vllm

from dspine.serve.vllm import contract

contract.check(vllm.__version__, contract.SERVING)

from dspine.serve.vllm.model import DSpineDraftModel  # noqa: E402, F401
