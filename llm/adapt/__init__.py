"""Teaches an autoregressive checkpoint to speak, and then to draft in parallel."""
