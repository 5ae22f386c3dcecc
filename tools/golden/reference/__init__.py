"""Tiny checkpoints, and what independent implementations compute with them."""
