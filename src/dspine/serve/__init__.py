"""Serving: the built-in HTTP server and the adapters that hand a drafter to a serving engine will live here."""
