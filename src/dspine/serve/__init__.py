"""Serving: the adapter to SGLang; the built-in HTTP server will live here."""
