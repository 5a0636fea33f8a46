"""Responses that are kept, so that a later request may go on from them, in SQLite.

One thread does all of it, so that the event loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm.config import ConfigError

T = TypeVar("T")

_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL,
    items TEXT NOT NULL, response TEXT NOT NULL
) WITHOUT ROWID
"""
_SECONDS_A_DAY = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and the items that it answered, all that came before it included."""

    items: list[Any]
    response: dict[str, Any]


class ResponseStore:
    """Keeps responses, each for the key that made it.

    path: the database, made where there is none. days: how long they are kept, 1 or more. Times
    are Unix times in seconds, handed in. Raises ConfigError where the file cannot be used.
    """

    def __init__(self, path: Path, days: int) -> None:
        assert days > 0, "what is kept for no day is not kept"
        self._seconds = days * _SECONDS_A_DAY
        self._thread = ThreadPoolExecutor(1, "ember-responses")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What people said is nobody else's business.
            path.touch(mode=0o600)
            self._database = self._thread.submit(_open, path).result()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot keep responses in {path}: {error}") from error

    async def save(self, owner: str, stored: StoredResponse, now: float) -> None:
        """Keep a response, and let go of what is too old."""
        row = (
            stored.response["id"],
            owner,
            now,
            json.dumps(stored.items),
            json.dumps(stored.response),
        )

        def work() -> None:
            with self._database as database:
                database.execute("DELETE FROM responses WHERE created < ?", (now - self._seconds,))
                database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?)", row)

        await self._run(work)

    async def find(self, owner: str, response_id: str, now: float) -> StoredResponse | None:
        """A response of this owner, or None."""

        def work() -> StoredResponse | None:
            row = self._database.execute(
                "SELECT items, response FROM responses WHERE id = ? AND owner = ? AND created >= ?",
                (response_id, owner, now - self._seconds),
            ).fetchone()
            return StoredResponse(json.loads(row[0]), json.loads(row[1])) if row else None

        return await self._run(work)

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response of this owner. Returns whether there was one."""

        def work() -> bool:
            with self._database as database:
                sql = "DELETE FROM responses WHERE id = ? AND owner = ?"
                return database.execute(sql, (response_id, owner)).rowcount > 0

        return await self._run(work)

    def close(self) -> None:
        """Close the database; nothing is asked afterwards."""
        self._thread.submit(self._database.close).result()
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    with database:
        database.execute(_TABLE)
    return database
