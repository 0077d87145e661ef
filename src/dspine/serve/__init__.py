"""Serving: the built-in HTTP server, and the adapter to SGLang."""
