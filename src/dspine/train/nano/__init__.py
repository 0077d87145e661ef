"""The nano target and its text: a model of 1.5 million parameters that the project trains itself in minutes."""
