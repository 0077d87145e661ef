"""The DSPINE algorithm for SGLang, as a plugin that SGLang finds when dspine is installed beside it.

One rule: SGLang's own DFlash worker runs the round (scheduling, caches, verification, grammar); what is ours is the
network, the choice of candidates with the law they were drawn from, and what is refused. Nothing here is imported by
the rest of dspine, and only `plugin` and what it needs by an SGLang that serves something else.
"""
