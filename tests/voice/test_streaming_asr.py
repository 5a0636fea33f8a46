from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voice.streaming_asr import FinalText, Job, PartialText, StreamingAsr

S = 16_000
PADDING = S // 5


def listening(start: int = S) -> StreamingAsr:
    asr = StreamingAsr(interval_ms=250)
    asr.began(start)
    return asr


def hear(asr: StreamingAsr, now: int, new_silence: int | None = None) -> Job | None:
    return asr.hear(now, new_silence=new_silence)


def test_a_job_every_quarter_second_and_one_at_a_time() -> None:
    asr = listening()
    assert hear(asr, S + 500) is None
    first = hear(asr, S + 4_000)
    assert first == Job(1, S - PADDING, S + 4_000)
    assert hear(asr, 3 * S) is None, "one is running"
    assert asr.finished(first, "What", 3 * S) == (PartialText("", "What"), None)
    second = hear(asr, 3 * S)
    assert second == Job(1, S - PADDING, 3 * S), "the newest audio wins, nothing waits in line"
    found, _ = asr.finished(second, "What is it", 4 * S)
    assert found == PartialText("What", "What is it")


def test_a_job_that_began_with_the_silence_is_final_without_another() -> None:
    asr = listening()
    job = hear(asr, 2 * S, new_silence=2 * S - 512)
    assert job is not None
    asr.finished(job, "What is it?", 2 * S + 1_000)
    assert asr.paused(2 * S - 512, 2 * S + 1_024) == (FinalText(2 * S - 512, "What is it?"), None)
    assert asr.num_reused == 1


def test_a_silence_that_a_job_covers_needs_no_other() -> None:
    asr = listening()
    job = hear(asr, 2 * S)
    assert job is not None
    asr.finished(job, "What is it?", 2 * S + 100)
    assert hear(asr, 2 * S + 400, new_silence=2 * S - 112) is None
    assert asr.paused(2 * S - 112, 2 * S + 1_424)[0] == FinalText(2 * S - 112, "What is it?")


def test_a_running_job_that_covers_the_speech_is_waited_for() -> None:
    asr = listening()
    job = hear(asr, 2 * S, new_silence=2 * S - 512)
    assert job is not None
    assert asr.paused(2 * S - 512, 2 * S + 1_024) == (None, None)
    final = FinalText(2 * S - 512, "What is it?")
    assert asr.finished(job, "What is it?", 2 * S + 2_000) == (final, None)


def test_a_job_that_missed_the_end_is_followed_by_one_that_does_not() -> None:
    asr = listening()
    job = hear(asr, 2 * S)
    assert job is not None
    assert asr.paused(2 * S + 4_000, 2 * S + 5_536) == (None, None)
    found, following = asr.finished(job, "What is", 2 * S + 6_000)
    assert found is None
    assert following == Job(1, S - PADDING, 2 * S + 6_000)
    final = FinalText(2 * S + 4_000, "What is it?")
    assert asr.finished(following, "What is it?", 3 * S) == (final, None)
    assert asr.num_reused == 0


def test_the_text_of_a_job_of_an_older_utterance_is_dropped() -> None:
    asr = listening()
    old = hear(asr, 2 * S)
    assert old is not None
    asr.began(5 * S)
    assert asr.paused(6 * S, 6 * S + 1_536) == (None, None)
    found, job = asr.finished(old, "Old", 6 * S + 2_000)
    assert found is None
    assert job == Job(2, 5 * S - PADDING, 6 * S + 2_000)


def test_whoever_goes_on_gets_the_whole_utterance_transcribed_again() -> None:
    asr = listening()
    _, job = asr.paused(2 * S, 2 * S + 1_536)
    assert job is not None
    asr.finished(job, "What is", 2 * S + 2_000)
    asr.resumed()
    again = hear(asr, 3 * S)
    assert again == Job(1, S - PADDING, 3 * S)


def test_a_long_phrase_stays_as_it_was_understood() -> None:
    asr = listening(0)
    _, job = asr.paused(7 * S, 7 * S + 1_536)
    assert job is not None
    asr.finished(job, "Once upon a time", 7 * S + 2_000)
    asr.resumed()
    more = hear(asr, 9 * S)
    assert more == Job(2, 7 * S, 9 * S)
    found, _ = asr.finished(more, "there was", 9 * S)
    assert found == PartialText("Once upon a time", "Once upon a time there was")
    _, last = asr.paused(10 * S, 10 * S + 1_536)
    assert last is not None
    found, _ = asr.finished(last, "there was a king.", 11 * S)
    assert found == FinalText(10 * S, "Once upon a time there was a king.")


@given(st.lists(st.tuples(st.sampled_from(["hear", "dip", "done", "pause"]), st.integers(1, S))))
def test_every_pause_gets_one_final_text(moves: list[tuple[str, int]]) -> None:
    asr, now, running = listening(0), 0, None
    owed: int | None = None
    is_paused = False
    for move, passed in moves:
        now += passed
        job, found = None, None
        if move == "done" and running is not None:
            covers, running = running.end, None
            found, job = asr.finished(Job(1, 0, covers), "text", now)
        elif move == "pause" and not is_paused:
            is_paused, owed = True, now - passed // 2
            found, job = asr.paused(owed, now)
        elif move != "done":
            if is_paused:
                asr.resumed()
                is_paused, owed = False, None
            if now < 6 * S:
                job = hear(asr, now, now - 512 if move == "dip" else None)
        if job is not None:
            assert running is None
            running = job
        if isinstance(found, FinalText):
            assert found == FinalText(owed or 0, "text")
            owed = None
        if now >= 6 * S:
            return
        assert owed is None or running is not None, "somebody waits for nothing"
