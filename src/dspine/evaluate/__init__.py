"""Evaluation: benchmark tasks, acceptance, throughput, latency, ablations and reports will live here."""
