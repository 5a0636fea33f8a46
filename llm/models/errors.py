"""What can go wrong between wanting a model and having it; each message is one helpful line."""

from __future__ import annotations


class ModelError(RuntimeError):
    """A model cannot be had; the message says why and what to do."""


class UnknownModelError(ModelError):
    """No model has this name; the message names the nearest one."""


class ModelMissingError(ModelError):
    """The model is known, but its files are not here, or not all of them whole."""


class WrongHashError(ModelError):
    """What was downloaded is not what the registry promises; it was thrown away."""


class NoSpaceError(ModelError):
    """The disk is too full for the model."""


class NetworkError(ModelError):
    """The model's source cannot be reached, or broke off; what arrived is kept."""
