"""The built-in server: the engine's slots behind OpenAI's HTTP API, on one machine.

One rule: what a client gets is what the engine gives for the same prompt and parameters; a field that cannot be
honoured is refused by its name. A request travels `app`, `requests`, `service`, `thread`, engine, and comes back as
updates that `bodies` writes in OpenAI's form.
"""
