"""One hands-free conversation: audio, words and answers go in, what to do comes out.

Pure: it joins the ear, the plan of transcripts, the turn machine, the judgement of interruptions
and the clock of what was heard, and knows the messages to the client. `voice.live` runs what it
asks for. Every input comes with the time, in samples of the call at LISTEN_RATE_HZ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm.types import Message
from voice import turn_events as turns
from voice import wire
from voice.answering import Answers, FlushAudio
from voice.barge_in import BargeInAction
from voice.dialogue import History, Send, SendAudio
from voice.endpoint import Endpointer, EndpointSettings, TurnTaking
from voice.events import LISTEN_RATE_HZ, Samples, Speech, TurnEvent
from voice.hearing import Hearing
from voice.measures import TurnRecord
from voice.overlap import Overlap
from voice.streaming_asr import FinalText, Job, PartialText, StreamingAsr
from voice.transcript import starts_with_words, words_of
from voice.turn import TurnMachine, TurnState
from voice.turn_log import TurnLog
from voice.vad import SpeechStarted, SpeechStopped

_KEPT_SAMPLES = LISTEN_RATE_HZ
_JUDGED_SAMPLES = 8 * LISTEN_RATE_HZ
"""The endpoint model hears no more than this."""


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Let the recogniser do this job."""

    job: Job
    samples: Samples


@dataclass(frozen=True, slots=True)
class JudgeEndpoint:
    """Ask the endpoint model whether the speech that paused at `end` is complete."""

    end: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class Answer:
    """Start to answer `text`."""

    turn: int
    text: str
    history: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """The answer is wanted: make all of it."""

    turn: int


@dataclass(frozen=True, slots=True)
class AbortAnswer:
    """Stop to answer."""

    turn: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A turn is over."""

    record: TurnRecord


Action = (
    Measured
    | Transcribe
    | JudgeEndpoint
    | Answer
    | Released
    | AbortAnswer
    | FlushAudio
    | Send
    | SendAudio
)


class Conversation:
    """One call from its beginning.

    hearing: the ear. settings: when a turn is over. history: shared with whatever came before.
    rate_hz: the sample rate of the answers. turn: the highest turn number used so far. keeps_time:
    the transport takes each sample at its time (`take`) and none are sent, see `voice.playout`.
    session: its name in the records of its turns. num_speculated, num_dropped: answers begun before
    their turn was released, and those of them that were thrown away.
    """

    def __init__(
        self,
        hearing: Hearing,
        settings: EndpointSettings,
        history: History,
        *,
        rate_hz: int,
        turn: int = 0,
        keeps_time: bool = False,
        session: str = "",
    ) -> None:
        self._hearing = hearing
        self._settings = settings
        self._history = history
        self._machine = TurnMachine(Endpointer(settings), turn)
        self._asr = StreamingAsr()
        self._answers = Answers(rate_hz, history, keeps_time=keeps_time)
        self._overlap = Overlap(rate_hz, keeps_time=keeps_time)
        self._log = TurnLog(session)
        self._known_turn = turn
        self._utterance_start = -1
        self._speech_start = 0
        self._understood_at = 0
        self._told = wire.Hearing(speaking=False, text="")
        self.num_speculated = 0
        self.num_dropped = 0

    @property
    def state(self) -> TurnState:
        """Who has the turn."""
        return self._machine.state

    @property
    def turn(self) -> int:
        """The highest turn number that the client knows."""
        return self._known_turn

    @property
    def num_reused_transcripts(self) -> int:
        """Final transcripts that needed no decoding after the soft end."""
        return self._asr.num_reused

    def hear(self, samples: Samples, now: int) -> Sequence[Action]:
        """The next frame, float32 [n] at 16 kHz, of a stream that never pauses."""
        actions: list[Action] = []
        for event in self._hearing.feed(samples):
            match event:
                case SpeechStarted(at_sample):
                    actions += self._began(at_sample, now)
                case SpeechStopped(at_sample):
                    actions += self._weigh(self._overlap.ended(at_sample, now), now)
                    actions += self._turn(turns.SpeechPaused(at_sample), now)
        is_heard = self.state in {TurnState.USER_SPEAKING, TurnState.OVERLAPPING}
        if is_heard and self._hearing.is_speech:
            job = self._asr.hear(self._hearing.now, new_silence=self._hearing.new_silence)
            actions += self._transcribe(job)
        actions += self._weigh(self._overlap.listened(samples, now), now)
        actions += self.tick(now)
        self._forget()
        return actions

    def tick(self, now: int) -> Sequence[Action]:
        """Time has passed."""
        actions = [*self._turn(turns.Ticked(), now)]
        if (turn := self._answers.played_out(now)) is not None:
            actions += self._turn(turns.PlayedOut(turn), now)
        return actions

    def take(self, num_samples: int, now: int) -> Samples:
        """The next samples of the answers, or silence, for a transport that keeps time."""
        samples = self._answers.take(num_samples, now)
        self._overlap.played(samples)
        return samples

    def transcribed(self, job: Job, text: str, now: int) -> Sequence[Action]:
        """A job of Transcribe is done; text is empty where it failed."""
        found, following = self._asr.finished(job, text, self._hearing.now)
        actions = [*self._transcribe(following)]
        match found:
            case PartialText():
                actions += self._partly_understood(found, now)
            case FinalText():
                actions += self._understood(found, now)
            case None:
                pass
        return actions

    def judged(self, end: int, probability: float, now: int) -> Sequence[Action]:
        """What JudgeEndpoint asked for."""
        return self._turn(turns.Judged(end, probability), now)

    def replied(self, event: TurnEvent, now: int) -> Sequence[Action]:
        """The next event of an answer."""
        if event.turn == self._machine.turn:
            self._log.made(event, now)
        return self._turn(turns.Replied(event), now)

    def receive(self, message: wire.ClientMessage, now: int) -> Sequence[Action]:
        """A message of the client. Raises WireError for one that has no place here."""
        match message:
            case wire.Question(text):
                return self._turn(turns.Asked(text), now)
            case wire.Cancel():
                told = self._tell(speaking=False, text="")
                return (*told, *self._turn(turns.Cancelled(), now))
            case wire.SpeechEnd():
                return self._turn(turns.Closed(), now)
            case wire.Playback(turn, played_ms):
                self._answers.played(turn, played_ms, now)
                return ()
            case wire.SpeechStart() | wire.ListenStart() | wire.ListenStop():
                raise wire.illegal_move("hands-free listening has started already")

    def end(self, now: int) -> Sequence[Action]:
        """The conversation is over: end what is under way."""
        return self._turn(turns.Cancelled(), now)

    # ---- what comes of it

    def _began(self, start: int, now: int) -> Sequence[Action]:
        self._speech_start = start
        actions = self._turn(turns.SpeechBegan(start), now)
        if self._machine.utterance_start == self._utterance_start:
            self._asr.resumed()
        else:
            self._utterance_start = self._machine.utterance_start
            self._asr.began(self._utterance_start)
        weighed = self._weigh(self._overlap.began(start, now), now)
        return (*self._tell(speaking=True, text=""), *actions, *weighed)

    def _partly_understood(self, partial: PartialText, now: int) -> Sequence[Action]:
        actions = [*self._tell(speaking=True, text=partial.newest)]
        actions += self._turn(turns.PartlyUnderstood(partial.agreed), now)
        if self.state is TurnState.OVERLAPPING:
            actions += self._weigh(
                self._overlap.understood(self._new_words(partial.agreed), now), now
            )
        return actions

    def _understood(self, final: FinalText, now: int) -> Sequence[Action]:
        self._understood_at = now
        self._log.understood(now)
        actions = [*self._tell(speaking=False, text=final.text)]
        actions += self._turn(turns.Understood(final.end, final.text), now)
        if self.state is TurnState.WEIGHING:
            words = self._new_words(final.text)
            verdict = self._overlap.understood(words, now, final=True)
            actions += self._weigh(verdict, now)
        return actions

    def _new_words(self, text: str) -> str:
        """What was said over the answer: all, or what follows the question that it goes on from."""
        question = self._answers.question
        if self._machine.goes_on and starts_with_words(question, text):
            return ""
        if self._machine.goes_on and starts_with_words(text, question):
            return " ".join(words_of(text)[len(words_of(question)) :])
        return text

    def _weigh(self, verdict: BargeInAction | None, now: int) -> Sequence[Action]:
        """Do what the judge of interruptions says, and tell the turn machine if it is settled."""
        if verdict is not None:
            self._log.shaped(verdict, self._speech_start, now)
        if verdict is BargeInAction.INTERRUPT:
            return self._turn(turns.Interrupted(), now)
        shaped = () if verdict is None else self._answers.shape(verdict, now)
        if self.state is not TurnState.WEIGHING or not self._overlap.is_settled:
            return shaped
        told = self._tell(speaking=False, text="")
        return (*shaped, *told, *self._turn(turns.FalseAlarm(), now))

    def _turn(self, event: turns.TurnInput, now: int) -> Sequence[Action]:
        actions: list[Action] = []
        for action in self._machine.handle(event, now):
            actions += self._carry_out(action, now)
        return actions

    def _carry_out(self, action: turns.TurnAction, now: int) -> Iterable[Action]:  # noqa: PLR0911 - one for each action
        answers = self._answers
        match action:
            case turns.Judge(start, end):
                return self._judge(start, end, now)
            case turns.Speculate(turn, text):
                self.num_speculated += 1
                self._log.admitted(now)
                return (Answer(turn, text, self._history.messages()),)
            case turns.Drop(turn):
                self.num_dropped += 1
                self._log.dropped()
                return (AbortAnswer(turn),)
            case turns.Release(turn, text, end):
                self._known_turn = turn
                self._log.released(turn, end, now)
                understood_at = max(end, self._understood_at)
                told = answers.release(turn, text, spoke_until=end, understood_at=understood_at)
                return (Released(turn), *told)
            case turns.Pass(event):
                if isinstance(event, Speech):
                    self._overlap.answer_sounds()
                self._log.left(event, now)
                return answers.pass_on(event, now)
            case turns.Abort(turn):
                aborted = answers.abort(turn, now)
                return (AbortAnswer(turn), *aborted, *self._measured(now))
            case turns.Stop(turn, counts):
                self._overlap.answer_ended()
                stopped = answers.stop(turn, now, counts=counts)
                return (FlushAudio(turn), AbortAnswer(turn), *stopped, *self._measured(now))
            case turns.Complete(turn):
                self._overlap.answer_ended()
                return (*answers.complete(turn), *self._measured(now))

    def _measured(self, now: int) -> Sequence[Action]:
        record = self._log.ended(now, num_words_heard=self._answers.num_words_heard)
        return () if record is None else (Measured(record),)

    def _judge(self, start: int, end: int, now: int) -> Sequence[Action]:
        self._log.paused(now)
        actions: list[Action] = []
        if self._settings.turn_taking is TurnTaking.SMART:
            first = max(start - _KEPT_SAMPLES // 4, self._hearing.now - _JUDGED_SAMPLES)
            actions.append(JudgeEndpoint(end, self._hearing.audio(first, self._hearing.now)))
        final, job = self._asr.paused(end, self._hearing.now)
        actions += self._transcribe(job)
        if final is not None:
            actions += self._understood(final, now)
        return actions

    def _transcribe(self, job: Job | None) -> Sequence[Action]:
        return () if job is None else (Transcribe(job, self._hearing.audio(job.start, job.end)),)

    def _tell(self, *, speaking: bool, text: str) -> Sequence[Action]:
        told, self._told = self._told, wire.Hearing(speaking, text)
        return () if told == self._told else (Send(self._told),)

    def _forget(self) -> None:
        is_needed = self._machine.may_go_on(self._hearing.now)
        first = self._utterance_start if is_needed else self._hearing.now
        self._hearing.forget(min(first, self._hearing.now) - _KEPT_SAMPLES)
