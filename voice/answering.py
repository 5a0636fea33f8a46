"""The answer that is under way in a hands-free conversation: what the client is told of it, its
times, how much of it has been heard, and what of it the history keeps. Pure; time is in samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from voice import wire
from voice.barge_in import BargeInAction
from voice.dialogue import History, Send, SendAudio
from voice.events import (
    LISTEN_RATE_HZ,
    AnswerGuess,
    AnswerText,
    Heard,
    Samples,
    Speech,
    StageTimes,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
)
from voice.heard import SpokenClause, heard_text
from voice.playout import DUCKED_GAIN, FADE_MS, Playout
from voice.wire import ErrorCode

_ALL = 2**31


@dataclass(frozen=True, slots=True)
class FlushAudio:
    """Forget the audio that waits to be sent."""

    turn: int


@dataclass(slots=True)
class _Answer:
    """One released answer. spoken: its clauses so far."""

    turn: int
    question: str
    spoke_until: int
    times: StageTimes
    spoken: list[SpokenClause] = field(default_factory=list)
    is_made: bool = False


class Answers:
    """The released answers of one conversation, of which one is under way at a time.

    rate_hz: the sample rate of the answers. history: where what was heard goes. keeps_time: see
    `voice.playout`; then samples are taken with `take`, and none are sent.
    """

    def __init__(self, rate_hz: int, history: History, *, keeps_time: bool = False) -> None:
        self._rate_hz = rate_hz
        self._history = history
        self._keeps_time = keeps_time
        self._playout = Playout(rate_hz, keeps_time=keeps_time)
        self._paused_at = 0
        self._answer: _Answer | None = None
        self.num_words_heard = 0
        """Of the answer that ended last."""

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

    def take(self, num_samples: int, now: int) -> Samples:
        """The next samples for a transport to which the server gives each at its time."""
        return self._playout.take(num_samples, now)

    def shape(self, action: BargeInAction, now: int) -> Sequence[Send | SendAudio | FlushAudio]:
        """Change how the answer sounds, as long as it is not interrupted."""
        playout = self._playout
        turn = playout.turn
        assert turn is not None, action
        match action:
            case BargeInAction.DUCK:
                playout.duck()
                return (Send(wire.AudioGain(turn, DUCKED_GAIN)),)
            case BargeInAction.UNDUCK:
                playout.unduck()
                return (Send(wire.AudioGain(turn, 1.0)),)
            case BargeInAction.PAUSE:
                self._paused_at = playout.pause(now)
                return (FlushAudio(turn), Send(wire.AudioPause(turn, FADE_MS)))
            case BargeInAction.RESUME:
                at = word_start(self._current(turn).spoken, self._paused_at)
                playout.resume(at)
                at_ms = at * 1_000 // self._rate_hz
                return (Send(wire.AudioResume(turn, at_ms)), *self._send(turn, now))
            case BargeInAction.INTERRUPT:
                raise AssertionError("an interruption stops the answer")

    def played(self, turn: int, played_ms: int, now: int) -> None:
        """The client says how much of an answer has sounded."""
        if self._playout.turn == turn:
            self._playout.report(max(0, played_ms) * self._rate_hz // 1_000, now)

    def played_out(self, now: int) -> int | None:
        """The turn whose answer is made and was just heard to its end, if there is one."""
        turn = self._playout.turn
        return turn if self._playout.has_ended(now) else None

    def abort(self, turn: int, now: int) -> Sequence[Send]:
        """The answer ends before anything of it sounded; it leaves no trace in the history."""
        self.num_words_heard = 0
        answer, self._answer = self._current(turn), None
        return () if answer.is_made else self._cancelled(answer, now)

    @property
    def question(self) -> str:
        """What the answer under way answers."""
        return "" if self._answer is None else self._answer.question

    def stop(self, turn: int, now: int, *, counts: bool) -> Sequence[Send]:
        """The answer is interrupted; the history keeps what was heard of it, if it counts."""
        answer, self._answer = self._current(turn), None
        heard = heard_text(answer.spoken, self._playout.stop(now))
        self.num_words_heard = heard.num_words
        if heard.text and counts:
            self._history.add(answer.question, heard.for_history)
        stopped = Send(wire.AudioStop(turn, FADE_MS, heard.text))
        if answer.is_made:
            return (stopped,)
        return (stopped, Send(wire.AudioEnd(turn)), *self._cancelled(answer, now))

    def complete(self, turn: int) -> Sequence[Send]:
        """All of the answer was heard."""
        answer, self._answer = self._current(turn), None
        words = [word for clause in answer.spoken for word in clause.text.split()]
        self.num_words_heard = len(words)
        self._history.add(answer.question, " ".join(words))
        return ()

    def _speak(self, answer: _Answer, speech: Speech, now: int) -> Sequence[Send | SendAudio]:
        is_first = not answer.spoken
        answer.spoken.append(_spoken(speech))
        if is_first:
            first_ms = _ms(now - answer.spoke_until)
            answer.times = replace(answer.times, first_audio_ms=first_ms)
            self._playout.begin(speech.turn)
        self._playout.add(speech.turn, speech.samples)
        started = (Send(wire.AudioStart(speech.turn)),) if is_first else ()
        return (*started, *self._send(speech.turn, now))

    def _send(self, turn: int, now: int) -> Sequence[SendAudio]:
        """What the transport can take now."""
        if self._keeps_time:
            return ()
        samples = self._playout.take(_ALL, now)
        return (SendAudio(turn, samples),) if len(samples) else ()

    def _end(self, answer: _Answer, ended: TurnEnded, now: int) -> Sequence[Send]:
        answer.is_made = True
        self._playout.finish(ended.turn)
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

    def _current(self, turn: int) -> _Answer:
        assert self._answer is not None
        assert self._answer.turn == turn, (self._answer.turn, turn)
        return self._answer


def word_start(clauses: Sequence[SpokenClause], at: int) -> int:
    """The sample at which the word begins that sounds at sample `at` of the clauses."""
    begins = start = 0
    for clause in clauses:
        for end in (*clause.word_ends, clause.num_samples):
            if start + end > at:
                return begins
            begins = start + end
        start += clause.num_samples
    return begins


def _spoken(speech: Speech) -> SpokenClause:
    if speech.word_ends:
        return SpokenClause(speech.clause, len(speech.samples), speech.word_ends)
    return SpokenClause.of(speech.clause, len(speech.samples))


def _ms(samples: int) -> float:
    return samples * 1_000 / LISTEN_RATE_HZ
