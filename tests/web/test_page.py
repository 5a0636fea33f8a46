"""The page in a real browser, with a spoken WAV file as its microphone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.llm.fakes import live
from tests.voice.session_fakes import ANSWER, HEARD, FakeAssistant, FakePipeline
from tests.web.chromium import Page, open_page
from voice.gateway.app import create_app
from voice.gateway.state import Gateway

SAMPLE = Path(__file__).parents[2] / "voice" / "samples" / "capital_of_france.wav"
HOLD_S = 3.5  # longer than what the microphone says
WATCH = """
window.states = [];
window.peak = 0;
new MutationObserver(() => states.push(document.body.dataset.state))
  .observe(document.body, {attributeFilter: ["data-state"]});
new MutationObserver(() => {
  window.peak = Math.max(peak, Number(getComputedStyle(talk).getPropertyValue("--level")));
}).observe(document.getElementById("talk"), {attributeFilter: ["style"]});
"""

pytestmark = pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")


class Served:
    """A gateway on a port, and its fakes."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.url = f"http://127.0.0.1:{port}/"
        self.pipeline = FakePipeline(pause_s=0.1, spoken_s=1.6)

    def finish_loading(self) -> None:
        self.gateway.open(FakeAssistant(self.pipeline))


@pytest.fixture
def served() -> Iterator[Served]:
    gateway = Gateway(model="tiny", max_history_characters=1000)
    with live(create_app(gateway)) as port:
        yield Served(gateway, port)


def say_sample(folder: Path) -> Path:
    """A WAV file for the microphone: the sample with half a second of silence around it."""
    samples, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    quiet = np.zeros(rate_hz // 2, np.float32)
    microphone = folder / "microphone.wav"
    soundfile.write(microphone, np.concatenate([quiet, samples, quiet]), rate_hz, "PCM_16")
    return microphone


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with open_page(tmp_path, say_sample(tmp_path)) as opened:
        yield opened


def open_ready(page: Page, served: Served) -> None:
    served.finish_loading()
    page.open(served.url)
    page.wait_for("document.body?.dataset.connection === 'open'")
    page.evaluate(WATCH)


def hold_space(page: Page, hold_s: float) -> None:
    page.key("keyDown", " ")
    page.wait_for("document.body.dataset.state === 'listening'")
    time.sleep(hold_s)
    page.key("keyUp", " ")


def keep(page: Page, name: str) -> None:
    """Save a screenshot where somebody asks for them."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(Path(folder) / f"{name}.png")


def test_a_spoken_question(page: Page, served: Served) -> None:
    open_ready(page, served)
    keep(page, "welcome")
    hold_space(page, HOLD_S)
    page.wait_for("document.querySelector('.guess:not(:empty)')")
    keep(page, "forming")
    page.wait_for("document.body.dataset.state === 'speaking'")
    keep(page, "speaking")
    page.wait_for("document.body.dataset.state === 'idle'")
    keep(page, "answered")
    assert page.evaluate("document.querySelector('.question').textContent") == HEARD
    assert page.evaluate("document.querySelector('.committed').textContent") == "".join(ANSWER)
    assert page.evaluate("document.querySelector('#announcer').textContent") == "".join(ANSWER)
    assert page.evaluate("document.querySelector('.guess:not(:empty)') === null")
    assert "first sound 340 ms" in page.evaluate("document.querySelector('.times').textContent")
    assert page.evaluate("[...new Set(states)]") == [
        "opening",
        "listening",
        "thinking",
        "speaking",
        "idle",
    ]
    assert page.evaluate("peak") > 0.2, "the answer must have sounded"
    ((samples, text, _),) = served.pipeline.asked
    assert text is None
    assert samples is not None
    assert 2.5 < len(samples) / 16_000 < HOLD_S + 1
    loud = np.abs(samples) > 0.05
    assert loud.any(), "the microphone must have been heard"
    assert not loud[:1600].any(), "the silence before it, too"
    assert page.problems == []


def test_a_typed_question(page: Page, served: Served) -> None:
    open_ready(page, served)
    page.evaluate("question.focus()")
    page.command("Input.insertText", text="Who are you?")
    page.key("keyDown", " ")  # a space bar that types does not talk
    page.key("keyUp", " ")
    page.key("keyDown", "Enter")
    page.wait_for("document.querySelector('.turn')")
    page.wait_for("document.body.dataset.state === 'idle'")
    assert page.evaluate("document.querySelector('.question').textContent") == "Who are you?"
    assert page.evaluate("question.value") == ""
    assert [asked[1] for asked in served.pipeline.asked] == ["Who are you?"]
    assert "listening" not in page.evaluate("states")
    assert page.problems == []


def test_interrupting_silences_the_answer(page: Page, served: Served) -> None:
    served.pipeline.spoken_s = 60.0
    open_ready(page, served)
    page.evaluate("question.value = 'Talk!'; ask.requestSubmit()")
    page.wait_for("document.body.dataset.state === 'speaking'")
    page.key("keyDown", "Escape")
    page.wait_for("document.body.dataset.state === 'idle'")
    page.wait_for("document.querySelector('.turn[data-outcome]')")
    assert page.evaluate("document.querySelector('#stop').hidden")
    page.evaluate("question.value = 'Again!'; ask.requestSubmit()")
    page.wait_for("document.querySelectorAll('.turn').length === 2")
    page.wait_for("document.body.dataset.state === 'speaking'")
    page.evaluate("document.querySelector('#stop').click()")
    page.wait_for("document.body.dataset.state === 'idle'")
    assert page.problems == []


def click(page: Page) -> None:
    page.mouse("mousePressed", "#talk")
    page.mouse("mouseReleased", "#talk")


def test_a_second_click_before_the_microphone_is_open_asks_nothing(
    page: Page, served: Served
) -> None:
    open_ready(page, served)
    page.evaluate("navigator.mediaDevices.getUserMedia = () => new Promise(() => {})")
    click(page)
    page.wait_for("document.body.dataset.state === 'opening'")
    click(page)
    page.wait_for("document.body.dataset.state === 'idle'")
    assert served.pipeline.asked == []
    page.evaluate("question.value = 'Typed'; ask.requestSubmit()")
    page.wait_for("document.querySelector('.turn[data-outcome=answered]')")


def test_hands_free_needs_no_button_for_a_question(page: Page, served: Served) -> None:
    open_ready(page, served)
    page.evaluate("document.getElementById('hands-free').click()")
    page.wait_for("document.querySelector('.turn .times')", timeout_s=20)
    assert page.evaluate("document.querySelector('.turn .question').textContent") == HEARD
    assert page.evaluate("document.querySelector('.turn .committed').textContent") == "".join(
        ANSWER
    )
    page.wait_for("document.body.dataset.state === 'waiting'", timeout_s=10)
    states = page.evaluate("states")
    for before, after in (("opening", "listening"), ("listening", "speaking")):
        assert states.index(before) < states.index(after), states
    assert page.evaluate("peak") > 0.1
    assert len(served.pipeline.asked) == 1
    page.evaluate("document.getElementById('hands-free').click()")
    page.wait_for("document.body.dataset.state === 'idle'")
    assert page.problems == []


def test_without_a_microphone_it_says_so(page: Page, served: Served) -> None:
    open_ready(page, served)
    page.evaluate(
        "navigator.mediaDevices.getUserMedia = "
        "() => Promise.reject(new DOMException('', 'NotAllowedError'))"
    )
    click(page)
    page.wait_for("notice.textContent === 'Allow the microphone in the browser to talk.'")
    page.wait_for("document.body.dataset.state === 'idle'")
    page.evaluate("question.value = 'Then I type'; ask.requestSubmit()")
    page.wait_for("document.querySelector('.turn[data-outcome=answered]')")


def test_a_short_click_keeps_listening_until_the_next(page: Page, served: Served) -> None:
    open_ready(page, served)
    click(page)
    page.wait_for("document.body.dataset.state === 'listening'")
    assert page.evaluate("talk.getAttribute('aria-pressed')") == "true"
    keep(page, "listening")
    click(page)
    assert page.evaluate("talk.getAttribute('aria-pressed')") == "false"
    page.wait_for("document.querySelector('.turn[data-outcome=answered]')")
    assert len(served.pipeline.asked) == 1


def test_it_waits_for_the_models_and_comes_back(page: Page, served: Served) -> None:
    page.open(served.url)
    page.wait_for("document.querySelector('#connection')?.textContent === 'Loading'")
    assert page.evaluate("talk.disabled && question.disabled")
    served.finish_loading()
    page.wait_for("document.body.dataset.connection === 'open'")
    page.evaluate("question.value = 'One'; ask.requestSubmit()")
    page.wait_for("document.querySelector('.turn[data-outcome=answered]')")
    for session in list(served.gateway._sessions):
        session._tasks.copy().pop().get_loop().call_soon_threadsafe(session.end, None)
    page.wait_for("document.body.dataset.connection === 'closed'")
    page.wait_for("document.body.dataset.connection === 'open'")
    page.evaluate("question.value = 'Two'; ask.requestSubmit()")
    page.wait_for("document.querySelectorAll('.turn[data-outcome=answered]').length === 2")


def test_it_fits_a_phone_in_the_dark(page: Page, served: Served) -> None:
    page.command(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=780,
        deviceScaleFactor=2,
        mobile=True,
    )
    page.command(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    open_ready(page, served)
    page.evaluate("question.value = 'What is an ember, and why?'; ask.requestSubmit()")
    page.wait_for("document.querySelector('.turn[data-outcome=answered]')")
    keep(page, "phone")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("ask.getBoundingClientRect().bottom <= innerHeight")
