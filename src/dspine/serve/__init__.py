"""Serving: the built-in HTTP server and the adapters to serving engines will live here."""
