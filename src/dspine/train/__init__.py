"""The train room: prompts, the target's responses, its features, and a drafter made from them."""
