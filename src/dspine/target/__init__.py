"""The target room: somebody's frozen language model, how it is loaded, tapped, rolled back and spoken to."""
