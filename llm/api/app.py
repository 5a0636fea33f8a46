"""All routes that generate text, and the list of models: one router for each kind."""

from __future__ import annotations

from fastapi import APIRouter

from llm.api import chat_completions, completions, edit, models
from llm.api.chat import ChatService


def create_router(service: ChatService) -> APIRouter:
    """The routes of chat completions, completions, edits and models, served by `service`."""
    router = APIRouter()
    for kind in (chat_completions, completions, edit, models):
        router.include_router(kind.create_router(service))
    return router
