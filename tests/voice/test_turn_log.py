from __future__ import annotations

import numpy as np

from llm.types import Usage
from voice.barge_in import BargeInAction
from voice.events import AnswerText, Speech, StageTimes, TurnEnded, TurnOutcome
from voice.measures import Mark
from voice.turn_log import TurnLog

SPEECH = Speech(2, np.zeros(10, np.float32), 22_050, "Two words.")
DONE = TurnEnded(2, TurnOutcome.ANSWERED, StageTimes(llm_ms=100.0), Usage(num_forwards=3))


def test_a_speculation_that_is_released() -> None:
    log = TurnLog("a")
    log.paused(17_600)
    log.understood(19_200)
    log.admitted(19_200)
    log.dropped()
    log.admitted(20_800)
    log.made(AnswerText(2, "Two"), 22_400)
    log.made(SPEECH, 24_000)
    log.released(2, 16_000, 25_600)
    log.left(SPEECH, 25_600)
    log.made(DONE, 27_200)
    log.left(DONE, 27_200)
    log.shaped(BargeInAction.DUCK, 28_000, 30_000)
    log.shaped(BargeInAction.PAUSE, 28_000, 32_000)
    record = log.ended(40_000, num_words_heard=1)
    assert record is not None
    assert record.marks == {
        Mark.SOFT_END: 100.0,
        Mark.TRANSCRIPT: 200.0,
        Mark.ADMITTED: 300.0,
        Mark.FIRST_COMMIT: 400.0,
        Mark.FIRST_SYNTHESIS: 500.0,
        Mark.ENDPOINT: 600.0,
        Mark.FIRST_AUDIBLE: 600.0,
        Mark.LLM_DONE: 400.0,
        Mark.BARGE_IN: 750.0,
        Mark.STOPPED: 1_000.0,
        Mark.ENDED: 1_500.0,
    }
    assert (record.session, record.turn, record.outcome) == ("a", 2, TurnOutcome.ANSWERED)
    assert (record.num_answers_dropped, record.num_words, record.num_words_unheard) == (1, 2, 1)
    assert record.num_forwards == 3
    assert log.ended(50_000, num_words_heard=0) is None


def test_an_answer_that_is_not_made_is_cancelled() -> None:
    log = TurnLog("a")
    log.admitted(0)
    log.released(1, 0, 100)
    record = log.ended(200, num_words_heard=0)
    assert record is not None
    assert record.outcome is TurnOutcome.CANCELLED
