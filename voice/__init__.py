"""The conversation: audio in, turns, audio out. Reaches the language model in process."""
