"""The HTTP API for text clients, OpenAI-compatible."""
