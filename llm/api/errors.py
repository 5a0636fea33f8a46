"""Errors in the shape that OpenAI clients read: {"error": {message, type, param, code}}."""

from __future__ import annotations

import re

from fastapi.responses import JSONResponse
from pydantic import ValidationError

from llm.types import ContextLengthError, InvalidRequestError, QueueFullError

_FIELD = re.compile(r"[a-z0-9_]+")


class ApiError(Exception):
    """A request that is answered with an error.

    status: HTTP status. message: one sentence for the caller. param: the name of the parameter to
    change, None where it is none in particular. code: a machine-readable name, or None.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, object]:
        """The error as a JSON object."""
        kinds = {
            401: "authentication_error",
            429: "rate_limit_error",
            500: "server_error",
            503: "server_error",
        }
        kind = kinds.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The error as an HTTP response."""
        headers = {"retry-after": "1"} if self.status in {429, 503} else None
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def from_validation(error: ValidationError) -> ApiError:
    """The first complaint about a request body, with the parameter it is about."""
    errors = error.errors(include_url=False)
    # Of the branches of a union, the one that got furthest into the value is the one meant.
    about_first = [e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]]
    first = max(about_first, key=lambda e: len(e["loc"]))
    param = _param(first["loc"])
    # Pydantic puts this before the sentence of our own validators.
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {message}" if param else message, param=param)


def _param(loc: tuple[int | str, ...]) -> str | None:
    """The name of a parameter, without what pydantic says of the branches of unions.

    Those are class names, `list[...]` and the like, or repeat the name of the field behind them.
    """
    parts: list[str] = []
    for part in map(str, loc):
        is_name = _FIELD.fullmatch(part) and part not in {"str", "int", "float", "bool", "dict"}
        if is_name and part not in parts[-1:]:
            parts.append(part)
    return ".".join(parts) or None


def from_engine(error: InvalidRequestError | QueueFullError, *, param: str) -> ApiError:
    """What the engine refused; param: where the request says it, if the request is at fault."""
    if isinstance(error, QueueFullError):
        return ApiError(503, str(error), code="overloaded")
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    return ApiError(400, str(error), param=param, code=code)
