"""How much one caller may use: requests and tokens a minute, and requests at once; pure.

Rates are token buckets that hold a minute's worth and fill evenly. What a request costs in tokens
is known only at its end, so a bucket may go into debt, and whoever is in debt waits until it is
paid. Times are seconds of any clock that does not go back, handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from llm.config import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """What one caller may use; 0 = no limit.

    requests_per_minute, input_tokens_per_minute, output_tokens_per_minute: rates. concurrency:
    requests at once. Raises ConfigError for a negative value.
    """

    requests_per_minute: int = 0
    input_tokens_per_minute: int = 0
    output_tokens_per_minute: int = 0
    concurrency: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ConfigError(f"{field.name} must be 0 (no limit) or more")


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not run now, and after how many seconds it may."""

    message: str
    retry_after_s: float


class Bucket:
    """A token bucket: `per_minute` units at first and at most, which come back evenly."""

    def __init__(self, per_minute: int, now: float) -> None:
        assert per_minute > 0, "no limit is no bucket"
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Units there are now; below 0 where they are owed."""
        gained = max(0.0, now - self._at) * self.per_minute / 60
        return min(float(self.per_minute), self._level + gained)

    def spend(self, amount: float, now: float) -> None:
        """Take units out, or give back a negative amount; it may go into debt."""
        self._level = min(float(self.per_minute), self.level(now) - amount)
        self._at = max(self._at, now)

    def wait_s(self, now: float) -> float:
        """Seconds until there is a whole unit, 0 where there is one."""
        return max(0.0, 1 - self.level(now)) * 60 / self.per_minute

    def reset_s(self, now: float) -> float:
        """Seconds until it is full."""
        return (self.per_minute - self.level(now)) * 60 / self.per_minute


class Quota:
    """What one caller has used of its limits."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.num_running = 0
        self._buckets = {
            name: Bucket(per_minute, now)
            for name, per_minute in (
                ("requests", limits.requests_per_minute),
                ("input tokens", limits.input_tokens_per_minute),
                ("output tokens", limits.output_tokens_per_minute),
            )
            if per_minute
        }

    def admit(self, now: float) -> Refusal | None:
        """Begin a request, which must be ended by `release`, unless it is refused."""
        allowed = self.limits.concurrency
        if allowed and self.num_running >= allowed:
            return Refusal(f"this key may have {allowed} requests at once; wait for one to end", 1)
        empty = {name: wait for name, b in self._buckets.items() if (wait := b.wait_s(now)) > 0}
        if empty:
            name = max(empty, key=empty.__getitem__)
            rate = self._buckets[name].per_minute
            message = f"this key may use {rate} {name} a minute; try again in {empty[name]:.1f} s"
            return Refusal(message, empty[name])
        self.num_running += 1
        if "requests" in self._buckets:
            self._buckets["requests"].spend(1, now)
        return None

    def release(self) -> None:
        """A request that was admitted has ended."""
        assert self.num_running > 0, "each request ends once"
        self.num_running -= 1

    def spend(self, input_tokens: int, output_tokens: int, now: float) -> None:
        """Count tokens; negative numbers put an estimate right."""
        for name, amount in (("input tokens", input_tokens), ("output tokens", output_tokens)):
            if name in self._buckets:
                self._buckets[name].spend(amount, now)

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's x-ratelimit-* headers; `tokens` is the token limit that is nearer."""
        shown = {"requests": self._buckets.get("requests")}
        tokens = [b for name, b in self._buckets.items() if name != "requests"]
        shown["tokens"] = min(tokens, key=lambda b: b.level(now) / b.per_minute, default=None)
        headers = {}
        for name, bucket in shown.items():
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level(now))))
                headers[f"x-ratelimit-reset-{name}"] = _duration(bucket.reset_s(now))
        return headers


def retry_headers(seconds: float) -> dict[str, str]:
    """When to come back: whole seconds, as RFC 9110 section 10.2.3 has it, and milliseconds."""
    return {
        "retry-after": str(max(1, math.ceil(seconds))),
        "retry-after-ms": str(max(1, math.ceil(seconds * 1000))),
    }


def _duration(seconds: float) -> str:
    """As OpenAI writes them: 120ms, 6.5s, 1m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
    return f"{int(minutes)}m{rest:.3g}s" if minutes else f"{rest:.4g}s"
