"""What the routes of the gateway share: the models, how far they are, the open sessions."""

from __future__ import annotations

import time
from enum import Enum
from typing import Protocol

from fastapi import WebSocket

from llm.api.chat import ChatService
from llm.api.guard import MeteredEngine, TextEngine
from llm.api.responses import ResponsesService
from llm.api.responses_store import ResponseStore
from voice.endpoint import ENDPOINTING, EndpointSettings
from voice.gateway.websocket import WebSocketConnection
from voice.live import Parts, log_turn
from voice.measures import Mark, TurnRecord
from voice.metrics import Metrics
from voice.session import GOING_AWAY, Goodbye, Session
from voice.tracing import trace_turn

NOT_READY = Goodbye(1013, "the models are still loading; try again")
TOO_MANY_SESSIONS = Goodbye(1013, "too many conversations at once; try again later")

MAX_SESSIONS = 16
"""Conversations at once; each may hold a minute of audio."""


class Assistant(Protocol):
    """The loaded models."""

    @property
    def pipeline(self) -> Parts:
        """What answers a spoken or typed turn."""
        ...

    @property
    def engine(self) -> TextEngine:
        """The language model alone."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class Stage(Enum):
    """How far the server is; the value is what `/readyz` says."""

    LOADING = "loading the models"
    READY = "ready"
    STOPPING = "shutting down"


class Gateway:
    """What the routes share: how far the server is, the models once loaded, the open sessions."""

    def __init__(
        self,
        *,
        model: str,
        max_history_characters: int,
        store: ResponseStore | None = None,
        endpointing: EndpointSettings = ENDPOINTING,
    ) -> None:
        self.stage = Stage.LOADING
        self.chat = ChatService(self.language_model, model)
        self.responses = ResponsesService(self.language_model, model, store)
        self._assistant: Assistant | None = None
        self._metered: MeteredEngine | None = None
        self._max_history_characters = max_history_characters
        self._endpointing = endpointing
        self.metrics = Metrics()
        self._sessions: set[Session] = set()

    def open(self, assistant: Assistant) -> None:
        """The models are loaded and warm: start to serve."""
        assert self.stage is Stage.LOADING, "the models are loaded once"
        self._assistant = assistant
        self._metered = MeteredEngine(assistant.engine)
        self.stage = Stage.READY

    def stop(self) -> None:
        """End every session (close code 1001) and abort every generation."""
        self.stage = Stage.STOPPING
        self.chat.abort_all()
        self.responses.abort_all()
        for session in self._sessions:
            session.end(GOING_AWAY)

    async def converse(self, socket: WebSocket) -> None:
        """Serve one WebSocket until it ends."""
        await socket.accept()
        if self._assistant is None or self.stage is not Stage.READY:
            goodbye = GOING_AWAY if self.stage is Stage.STOPPING else NOT_READY
            await socket.close(goodbye.code, goodbye.reason)
            return
        if len(self._sessions) >= MAX_SESSIONS:
            await socket.close(TOO_MANY_SESSIONS.code, TOO_MANY_SESSIONS.reason)
            return
        session = Session(
            WebSocketConnection(socket),
            self._assistant.pipeline,
            max_history_characters=self._max_history_characters,
            endpointing=self._endpointing,
            measured=self._measured,
        )
        self._sessions.add(session)
        self.metrics.sessions.set(len(self._sessions))
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            self.metrics.sessions.set(len(self._sessions))

    def _measured(self, record: TurnRecord) -> None:
        log_turn(record)
        self.metrics.observe(record)
        since_ms = record.marks[Mark.ENDED]
        trace_turn(record, time.time_ns() - int(since_ms * 1_000_000))

    def language_model(self) -> MeteredEngine | None:
        """The language model, or None while it may not be used."""
        return self._metered if self.stage is Stage.READY else None
