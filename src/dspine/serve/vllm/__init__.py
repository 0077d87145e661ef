"""DSpine drafters in vLLM, through its method `dflash`: a plugin that vLLM finds when dspine is installed beside it.

One rule: vLLM's own DFlash proposer runs the round (scheduling, caches, verification); what is ours is the network, the
greedy walk over its candidates, and what is refused. Nothing here is imported by the rest of dspine, and only `plugin`
by a vLLM that serves something else.
"""
