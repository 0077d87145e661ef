"""The arithmetic of a round: plain torch definitions; a fused version of one stands beside it, same signature."""
