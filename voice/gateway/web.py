"""Where the files of the web page are, and how they are served."""

from __future__ import annotations

from pathlib import Path

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

_VOICE = Path(__file__).resolve().parent.parent


def web_folder() -> Path:
    """The folder of the page: inside the package when installed, beside it in a checkout.

    Raises FileNotFoundError where neither has it.
    """
    for folder in (_VOICE / "web", _VOICE.parent / "web"):
        if (folder / "index.html").is_file():
            return folder
    raise FileNotFoundError("the files of the web page are missing; install ember-voice again")


class WebFiles(StaticFiles):
    """The page's files, which the browser asks for anew after an upgrade of the server."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file, or a 404 (Starlette's StaticFiles), to be revalidated before each use."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response
