"""Token buckets and quotas, with time as a number; bodies too big or too deep."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.api.body_limits import depth
from llm.api.limits import Bucket, Limits, Quota, retry_headers
from llm.config import ConfigError

gap = st.floats(0, 90)
rate = st.integers(1, 5000)


@given(rate, st.lists(st.tuples(gap, st.floats(0.1, 100)), max_size=40))
def test_no_more_is_spent_than_flowed_in(per_minute: int, asked: list[tuple[float, float]]) -> None:
    now, spent = 100.0, 0.0
    bucket = Bucket(per_minute, now)
    for wait, amount in asked:
        now += wait
        if bucket.wait_s(now) == 0:
            bucket.spend(amount, now)
            spent += amount
            # What is owed at most is the last thing bought, which was let in on one unit.
            assert spent <= per_minute * (1 + (now - 100) / 60) + amount + 1e-6
        assert bucket.level(now) <= per_minute


@given(rate, st.floats(0, 10_000))
def test_after_the_wait_there_is_a_unit_and_not_before(per_minute: int, amount: float) -> None:
    bucket = Bucket(per_minute, 0.0)
    bucket.spend(amount, 0.0)
    wait = bucket.wait_s(0.0)
    assert bucket.level(wait) >= 1 - 1e-6
    if wait > 1e-3:
        assert bucket.level(wait * 0.99) < 1
    assert bucket.level(bucket.reset_s(0.0)) == pytest.approx(per_minute)


def test_a_clock_that_stands_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(60, 10.0)
    bucket.spend(60, 10.0)
    assert bucket.level(9.0) == bucket.level(10.0) == 0
    bucket.spend(0, 5.0)
    assert bucket.level(11.0) == pytest.approx(1)


@pytest.mark.parametrize(
    ("limits", "used", "says", "retry_after_s"),
    [
        (Limits(), (9, 10**9, 10**9), None, 0),
        (Limits(requests_per_minute=3), (2, 0, 0), None, 0),
        (Limits(requests_per_minute=3), (3, 0, 0), "3 requests a minute", 20),
        (Limits(input_tokens_per_minute=60), (1, 59, 0), None, 0),
        (Limits(input_tokens_per_minute=60), (1, 60, 0), "60 input tokens", 1),
        (Limits(input_tokens_per_minute=60), (1, 119, 0), "60 input tokens", 60),
        (Limits(output_tokens_per_minute=60), (1, 10**6, 70), "60 output tokens", 11),
        # The longest wait is the one that counts.
        (Limits(60, 60, 60), (60, 90, 75), "60 input tokens", 31),
    ],
)
def test_what_is_used_up_is_refused(
    limits: Limits, used: tuple[int, int, int], says: str | None, retry_after_s: float
) -> None:
    requests, input_tokens, output_tokens = used
    quota = Quota(limits, 0.0)
    for _ in range(requests):
        assert quota.admit(0.0) is None
        quota.release()
    quota.spend(input_tokens, output_tokens, 0.0)
    refusal = quota.admit(0.0)
    if says is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert says in refusal.message
        assert refusal.retry_after_s == pytest.approx(retry_after_s)
        assert quota.num_running == 0
        assert quota.admit(retry_after_s + 1e-6) is None


def test_so_many_at_once() -> None:
    quota = Quota(Limits(concurrency=2), 0.0)
    assert quota.admit(0.0) is None
    assert quota.admit(0.0) is None
    refusal = quota.admit(0.0)
    assert refusal is not None
    assert "2 requests at once" in refusal.message
    quota.release()
    assert quota.admit(0.0) is None


def test_an_estimate_is_put_right() -> None:
    quota = Quota(Limits(input_tokens_per_minute=600), 0.0)
    quota.spend(500, 0, 0.0)
    quota.spend(-400, 0, 0.0)
    assert quota.headers(0.0)["x-ratelimit-remaining-tokens"] == "500"


def test_headers_are_named_as_openai_names_them() -> None:
    quota = Quota(Limits(requests_per_minute=60, output_tokens_per_minute=1200), 0.0)
    assert quota.admit(0.0) is None
    quota.spend(0, 1300, 0.0)
    assert quota.headers(0.0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1200",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m5s",
    }
    assert quota.headers(0.99)["x-ratelimit-reset-requests"] == "10ms"
    assert Quota(Limits(), 0.0).headers(0.0) == {}
    assert retry_headers(0.02) == {"retry-after": "1", "retry-after-ms": "20"}
    assert retry_headers(1.2) == {"retry-after": "2", "retry-after-ms": "1200"}


def test_limits_are_not_negative() -> None:
    with pytest.raises(ConfigError, match="concurrency must be 0"):
        Limits(concurrency=-1)


json_value = st.recursive(
    st.none() | st.booleans() | st.text(alphabet='a"\\[]{}é\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='"\\[{'), inner),
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(json_value, st.booleans(), st.sampled_from([None, 2]))
def test_depth_is_that_of_the_parsed_value(value: Any, ascii_only: bool, indent: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert depth(text.encode()) == depth_of(value)


@given(st.binary())
def test_depth_of_anything_is_a_number(body: bytes) -> None:
    assert 0 <= depth(body) <= len(body)


def test_depth_of_an_endless_opening() -> None:
    assert depth(b"[" * 100_000) == 100_000
    assert depth(b"]" * 10) == 0
