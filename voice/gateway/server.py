"""Runs the application: socket, the thread that loads the models, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from llm.config import ConfigError
from llm.models.errors import ModelError
from voice.gateway.security import is_loopback
from voice.gateway.state import Assistant, Gateway

GRACE_S = 1.5
"""How long open requests may take to end at a shutdown, before they are cut off."""

MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""A whole utterance of 60 s fits one WebSocket message; a longer one closes with 1009."""


class _Server(uvicorn.Server):
    """A server that tells the gateway before it cuts connections, and that signals only stop."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.stop()
        # One turn of the loop for each session to send its close frame; uvicorn's follows.
        await asyncio.sleep(0.1)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Uvicorn raises the signal again after a clean shutdown, which would be the exit status.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def run(
    app: ASGIApp, gateway: Gateway, load: Callable[[], Assistant], *, host: str, port: int
) -> int:
    """Serve `app` until SIGINT or SIGTERM, and return the exit code.

    load: gives the models, warm; called in a thread while the port is open already.
    """
    try:
        listener = _listen(host, port)
    except OSError as error:
        _complain(f"cannot listen on {host}:{port}: {error.strerror or error}")
        return 1
    with listener:
        return asyncio.run(_serve(app, gateway, load, listener, _url(host, listener)))


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Before anything is loaded: a port is ours only when it listens.
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


async def _serve(
    app: ASGIApp,
    gateway: Gateway,
    load: Callable[[], Assistant],
    listener: socket.socket,
    url: str,
) -> int:
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        # Deflate costs CPU that the models need, and speech hardly shrinks.
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,  # type: ignore[arg-type]  # waited for as a float
    )
    server = _Server(config, gateway)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = _load_in_thread(load)
    either: list[asyncio.Future[Any]] = [serving, loading]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    exit_code = 0
    if loading.done() and (error := loading.exception()) is not None:
        logging.getLogger(__name__).debug("loading failed", exc_info=error)
        known = isinstance(error, ConfigError | ModelError)
        _complain(f"{error}" if known else f"cannot load the models: {error!r}")
        server.should_exit = True
        exit_code = 1
    elif loading.done():
        gateway.open(loading.result())
        sys.stdout.write(f"Ember is ready: {url} (press Ctrl-C to stop)\n")
        sys.stdout.flush()
    await serving
    if loading.done() and exit_code == 0:
        loading.result().close()
    return exit_code


def _load_in_thread(load: Callable[[], Assistant]) -> asyncio.Future[Assistant]:
    """Call `load` in a daemon thread: a shutdown must not wait for it, unlike for an executor's."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[Assistant] = loop.create_future()

    def work() -> None:
        try:
            assistant = load()
        except BaseException as error:  # noqa: BLE001  # raised again by whoever awaits
            deliver(loaded.set_exception, error)
        else:
            deliver(loaded.set_result, assistant)

    def deliver(setter: Callable[..., None], value: object) -> None:
        # The loop is closed where the server has stopped meanwhile: then nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(setter, value)

    threading.Thread(target=work, name="load-models", daemon=True).start()
    return loaded


def _url(host: str, listener: socket.socket) -> str:
    name = "localhost" if is_loopback(host) else host
    return f"http://{name}:{listener.getsockname()[1]}"


def _complain(message: str) -> None:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
