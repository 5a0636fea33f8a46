"""Who is next and how much: voice first, nobody forgotten, long prompts in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm.engine.scheduler import VOICE_IN_A_ROW, WaitingLine, share_rows
from llm.types import Priority

V, T = Priority.VOICE, Priority.TEXT


@given(st.lists(st.sampled_from(Priority), max_size=40))
def test_everybody_comes_out_once_and_in_order_of_their_line(kinds: list[Priority]) -> None:
    line: WaitingLine[int] = WaitingLine()
    for number, kind in enumerate(kinds):
        line.add(number, kind)
    out = [line.next() for _ in range(len(line))]
    assert sorted(out) == list(range(len(kinds)))
    for kind in Priority:
        numbers = [n for n in out if kinds[n] is kind]
        assert numbers == sorted(numbers)


def test_voice_goes_first_but_text_is_not_left_standing() -> None:
    line: WaitingLine[str] = WaitingLine()
    for n in range(10):
        line.add(f"t{n}", T)
    for n in range(10):
        line.add(f"v{n}", V)
    order = "".join(line.next()[0] for _ in range(20))
    assert order.startswith("v" * VOICE_IN_A_ROW + "t" + "v" * VOICE_IN_A_ROW + "t")


def test_drain_empties_every_line() -> None:
    line: WaitingLine[str] = WaitingLine()
    line.add("a", V)
    line.add("b", T)
    assert sorted(line.drain()) == ["a", "b"]
    assert len(line) == 0


sequences = st.lists(
    st.tuples(st.integers(1, 2000), st.sampled_from(Priority)), min_size=1, max_size=20
)


@given(sequences, st.integers(32, 300))
def test_shares(todo: list[tuple[int, Priority]], budget: int) -> None:
    rows, priorities = [r for r, _ in todo], [p for _, p in todo]
    shares = share_rows(rows, priorities, budget=budget, smallest=32)
    assert all(0 <= share <= need for share, need in zip(shares, rows, strict=True))
    assert all(s == n for s, n in zip(shares, rows, strict=True) if n <= 32), "decoders always run"
    long = [s for s, n in zip(shares, rows, strict=True) if n > 32]
    assert sum(long) <= budget
    assert not long or sum(long) > 0, "a long prompt goes on in every step"


def test_a_long_text_prompt_waits_for_a_voice_prompt() -> None:
    assert share_rows([500, 100, 300], [T, V, V], budget=256, smallest=32) == [0, 100, 156]


@given(sequences, st.integers(32, 300))
def test_who_cannot_be_divided_runs_whole_or_waits(
    todo: list[tuple[int, Priority]], budget: int
) -> None:
    rows, priorities = [r for r, _ in todo], [p for _, p in todo]
    shares = share_rows(rows, priorities, budget=budget, smallest=32, divisible=False)
    assert all(share in (0, need) for share, need in zip(shares, rows, strict=True))
    assert all(s == n for s, n in zip(shares, rows, strict=True) if n <= 32), "decoders always run"
    long = [s for s, n in zip(shares, rows, strict=True) if n > 32]
    running = [share for share in long if share]
    assert sum(running) <= budget or len(running) == 1
    assert not long or running, "a long canvas goes on in every step"


def test_a_whole_canvas_waits_for_room() -> None:
    def shares(*todo: int) -> list[int]:
        return share_rows(todo, [T] * len(todo), budget=256, smallest=32, divisible=False)

    assert shares(200, 100, 50) == [200, 0, 50]
    assert shares(900, 100) == [900, 0]
    assert shares(100, 900, 10) == [100, 0, 10]
