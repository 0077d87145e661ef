"""Serving: the built-in HTTP server, and the adapters to SGLang and vLLM."""
