"""The evaluate room: tasks, acceptance measured on them in the field's definitions, and throughput and latency."""
