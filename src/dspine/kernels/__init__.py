"""The arithmetic of a round: plain torch definitions, and beside each its fused version of the same signature."""
