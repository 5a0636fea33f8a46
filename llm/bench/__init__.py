"""`ember bench llm`: what the engine does on this machine, beside its limits and its peers."""
