"""What a drafter is trained for: one file per drafter's objective."""
