"""What the adapters to engines have in common: contracts, limits, the drafter's folder, the target, a block.

One rule: nothing here imports an engine, so that all of it is tested without one.
"""
