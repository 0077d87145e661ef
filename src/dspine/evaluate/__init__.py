"""Evaluation: benchmark tasks, acceptance, throughput, latency, ablations and their reports will live here."""
