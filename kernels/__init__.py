"""Triton kernels, each with its torch reference first. Imports nothing of ours."""

__version__ = "0.0.1"
