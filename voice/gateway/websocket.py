"""A Starlette WebSocket as the `Connection` that a session talks through."""

from __future__ import annotations

from fastapi import WebSocket, WebSocketDisconnect

from voice.session import DisconnectedError


class WebSocketConnection:
    """One accepted WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def receive(self) -> str | bytes:
        """The next text or binary message. Raises DisconnectedError."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise DisconnectedError
        text = message.get("text")
        data: str | bytes = message["bytes"] if text is None else text
        return data

    async def send(self, data: str | bytes) -> None:
        """Send one message. Raises DisconnectedError."""
        try:
            if isinstance(data, bytes):
                await self._socket.send_bytes(data)
            else:
                await self._socket.send_text(data)
        except WebSocketDisconnect as error:
            raise DisconnectedError from error

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame. Raises DisconnectedError."""
        try:
            await self._socket.close(code, reason)
        except WebSocketDisconnect as error:
            raise DisconnectedError from error
