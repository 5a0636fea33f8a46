"""The answer that is under way in a hands-free conversation: what the client is told of it, its
times, how much of it has been heard, and what of it the history keeps. Pure; time is in samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from voice import wire
from voice.dialogue import History, Send, SendAudio
from voice.events import (
    LISTEN_RATE_HZ,
    AnswerGuess,
    AnswerText,
    Heard,
    Speech,
    StageTimes,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
)
from voice.wire import ErrorCode

FADE_MS = 15
"""How fast an interrupted answer falls silent; cutting it off in the middle of a wave clicks."""

DUCKED_GAIN = 0.2
"""How loud an answer is while the user speaks over it."""

# Between sending and sounding: the network and what the client schedules ahead.
_LEAD_SAMPLES = LISTEN_RATE_HZ * 60 // 1_000


@dataclass(slots=True)
class _Answer:
    """One released answer. spoken: its clauses with their length in samples of the call.

    sounds_until: when all that was sent has been heard.
    """

    turn: int
    question: str
    spoke_until: int
    times: StageTimes
    spoken: list[tuple[str, int]] = field(default_factory=list)
    sounds_until: int = 0
    is_made: bool = False


class Answers:
    """The released answers of one conversation, of which one is under way at a time.

    rate_hz: the sample rate of the answers. history: where what was heard goes.
    """

    def __init__(self, rate_hz: int, history: History) -> None:
        self._rate_hz = rate_hz
        self._history = history
        self._answer: _Answer | None = None

    def release(
        self, turn: int, question: str, *, spoke_until: int, understood_at: int
    ) -> Sequence[Send]:
        """An answer may leave from now on. understood_at: when its question was known."""
        audio_to_text_ms = _ms(understood_at - spoke_until)
        self._answer = _Answer(turn, question, spoke_until, StageTimes(asr_ms=audio_to_text_ms))
        return (Send(wire.Transcript(turn, question)),)

    def pass_on(self, event: TurnEvent, now: int) -> Sequence[Send | SendAudio]:
        """Something of the released answer was made."""
        answer = self._current(event.turn)
        match event:
            case Heard():
                return ()  # its transcript was sent when it was released
            case AnswerGuess(turn, start, text, revised):
                guess = wire.AnswerRevised if revised else wire.AnswerProvisional
                return (Send(guess(turn, start, text)),)
            case AnswerText(turn, text):
                if answer.times.first_commit_ms is None:
                    first_ms = _ms(now - answer.spoke_until)
                    answer.times = replace(answer.times, first_commit_ms=first_ms)
                return (Send(wire.AnswerCommitted(turn, text)),)
            case Speech():
                return self._speak(answer, event, now)
            case TurnEnded():
                return self._end(answer, event, now)

    def duck(self, turn: int) -> Sequence[Send]:
        """The user speaks over the answer."""
        return (Send(wire.AudioGain(turn, DUCKED_GAIN)),)

    def resume(self, turn: int) -> Sequence[Send]:
        """The user did not mean to interrupt."""
        return (Send(wire.AudioGain(turn, 1.0)),)

    def played(self, turn: int, played_ms: int, now: int) -> None:
        """The client says how much of an answer has sounded."""
        if self._answer is None or self._answer.turn != turn:
            return
        total = sum(length for _, length in self._answer.spoken)
        left = max(0, total - played_ms * LISTEN_RATE_HZ // 1_000)
        self._answer.sounds_until = now + left

    def played_out(self, now: int) -> int | None:
        """The turn whose answer is made and was heard to its end, if there is one."""
        answer = self._answer
        if answer is None or not answer.is_made or now < answer.sounds_until:
            return None
        return answer.turn

    def abort(self, turn: int, now: int) -> Sequence[Send]:
        """The answer ends before anything of it sounded; it leaves no trace in the history."""
        answer, self._answer = self._current(turn), None
        return () if answer.is_made else self._cancelled(answer, now)

    def stop(self, turn: int, now: int) -> Sequence[Send]:
        """The answer is interrupted; the history keeps what was heard of it."""
        answer, self._answer = self._current(turn), None
        heard = self._heard(answer, now)
        self._history.add(answer.question, heard)
        stopped = Send(wire.AudioStop(turn, FADE_MS, heard))
        if answer.is_made:
            return (stopped,)
        return (stopped, Send(wire.AudioEnd(turn)), *self._cancelled(answer, now))

    def complete(self, turn: int) -> Sequence[Send]:
        """All of the answer was heard."""
        answer, self._answer = self._current(turn), None
        words = [word for clause, _ in answer.spoken for word in clause.split()]
        self._history.add(answer.question, " ".join(words))
        return ()

    def buffered_ms(self, now: int) -> float:
        """How much of what was sent is still to be heard."""
        return 0.0 if self._answer is None else max(0.0, _ms(self._answer.sounds_until - now))

    def _speak(self, answer: _Answer, speech: Speech, now: int) -> Sequence[Send | SendAudio]:
        is_first = not answer.spoken
        length = len(speech.samples) * LISTEN_RATE_HZ // self._rate_hz
        answer.spoken.append((speech.clause, length))
        answer.sounds_until = max(answer.sounds_until, now + _LEAD_SAMPLES) + length
        audio = SendAudio(speech.turn, speech.samples)
        if not is_first:
            return (audio,)
        first_ms = _ms(now - answer.spoke_until)
        answer.times = replace(answer.times, first_audio_ms=first_ms)
        return (Send(wire.AudioStart(speech.turn)), audio)

    def _end(self, answer: _Answer, ended: TurnEnded, now: int) -> Sequence[Send]:
        answer.is_made = True
        messages: list[wire.ServerMessage] = []
        if answer.spoken:
            messages.append(wire.AudioEnd(ended.turn))
        if ended.outcome is TurnOutcome.FAILED:
            sentence = ended.error or "the answer failed"
            messages.append(wire.ErrorMessage(ErrorCode.TURN_FAILED, sentence))
        times = replace(
            answer.times, llm_ms=ended.times.llm_ms, total_ms=_ms(now - answer.spoke_until)
        )
        messages.append(wire.TurnDone(ended.turn, ended.outcome, times, ended.usage))
        return tuple(map(Send, messages))

    def _cancelled(self, answer: _Answer, now: int) -> Sequence[Send]:
        times = replace(answer.times, total_ms=_ms(now - answer.spoke_until))
        return (Send(wire.TurnDone(answer.turn, TurnOutcome.CANCELLED, times, None)),)

    def _heard(self, answer: _Answer, now: int) -> str:
        """The words that have sounded, by the share of each clause that has."""
        total = sum(length for _, length in answer.spoken)
        heard = total - max(0, answer.sounds_until - now)
        words: list[str] = []
        for clause, length in answer.spoken:
            share = min(1.0, max(0.0, heard / length)) if length else 1.0
            spoken = clause.split()
            words += spoken[: round(share * len(spoken))]
            heard -= length
        return " ".join(words)

    def _current(self, turn: int) -> _Answer:
        assert self._answer is not None
        assert self._answer.turn == turn, (self._answer.turn, turn)
        return self._answer


def _ms(samples: int) -> float:
    return samples * 1_000 / LISTEN_RATE_HZ
