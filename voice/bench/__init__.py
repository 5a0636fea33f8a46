"""Measures a conversation as the caller hears it: `ember bench voice`."""
