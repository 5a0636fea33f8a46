"""The page's modules that decide or compute, run in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.llm.fakes import live
from tests.web.chromium import Page, open_page
from tests.web.test_page import say_sample
from voice.gateway.app import create_app
from voice.gateway.state import Gateway

pytestmark = pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")

# The worklet's class without an audio thread, so that no message arrives early or late.
CAPTURE = """(async () => {
  const frames = [];
  globalThis.sampleRate = %(rate_hz)d;
  globalThis.AudioWorkletProcessor = class {
    port = {
      postMessage: (data) => data === "stopped" || frames.push([...new Int16Array(data)]),
    };
  };
  let Capture;
  globalThis.registerProcessor = (name, processor) => { Capture = processor; };
  await import("/capture-worklet.js?" + Math.random());
  const capture = new Capture();
  let time = 0;
  const listen = (blocks) => {
    for (let block = 0; block < blocks; block++) {
      const samples = new Float32Array(128);
      const step = 2 * Math.PI * %(tone_hz)d / sampleRate;
      capture.process([[samples.map(() => 0.5 * Math.sin(step * time++))]]);
    }
  };
  listen(sampleRate / 128);
  capture.port.onmessage({ data: "start" });
  listen(sampleRate / 128);
  capture.port.onmessage({ data: "stop" });
  listen(10);
  return frames;
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    app = create_app(Gateway(model="tiny", max_history_characters=0))
    with live(app) as port, open_page(folder, say_sample(folder)) as opened:
        opened.open(f"http://127.0.0.1:{port}/")
        opened.wait_for("document.querySelector('#talk')")
        yield opened


@pytest.mark.parametrize(
    ("rate_hz", "tone_hz", "gain_db"),
    [
        (rate_hz, tone_hz, gain_db)
        for rate_hz in (16_000, 44_100, 48_000, 96_000)
        for tone_hz, gain_db in ((300, 0.0), (6_000, 0.0), (10_500, -40.0))
        if tone_hz < rate_hz / 2
    ],
)
def test_capture_gives_16_khz(page: Page, rate_hz: int, tone_hz: int, gain_db: float) -> None:
    frames = page.evaluate(CAPTURE % {"rate_hz": rate_hz, "tone_hz": tone_hz})
    assert {len(frame) for frame in frames[:-1]} == {320}
    pcm = np.concatenate(frames)
    assert abs(len(pcm) - 1.2 * 16_000) < 400, "1 s, and 200 ms from before"
    steady = pcm[1600:-1600] / 32767
    level_db = 20 * np.log10(np.sqrt(np.mean(steady**2)) / (0.5 / np.sqrt(2)))
    if gain_db < 0:
        assert level_db < gain_db
    else:
        assert abs(level_db) < 1
        spectrum = np.abs(np.fft.rfft(steady * np.hanning(len(steady))))
        assert abs(np.argmax(spectrum) * 16_000 / len(steady) - tone_hz) < 3


def committed(text: str) -> dict[str, Any]:
    return {"type": "answer.committed", "text": text}


def guess(start: int, text: str) -> dict[str, Any]:
    return {"type": "answer.provisional", "start": start, "text": text}


def revised(start: int, text: str) -> dict[str, Any]:
    return {"type": "answer.revised", "start": start, "text": text}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([committed("A"), committed("b")], ("Ab", "", None)),
        ([guess(0, "one two")], ("", "one two", None)),
        ([guess(0, "one two"), committed("one")], ("one", " two", None)),
        ([guess(0, "one two"), committed("three")], ("three", "", None)),
        ([guess(0, "one two"), guess(4, "six")], ("", "one six", None)),
        ([committed("one"), guess(3, " two"), guess(3, "")], ("one", "", None)),
        ([guess(0, "one two"), revised(4, "six")], ("", "one six", 4)),
        ([committed("one "), guess(4, "two"), revised(4, "six")], ("one ", "six", 0)),
        ([guess(0, "one two"), revised(4, "")], ("", "one ", None)),
        ([revised(0, "a"), committed("a")], ("a", "", None)),
        ([committed("🔥 "), guess(2, "hot"), revised(4, "p")], ("🔥 ", "hop", 2)),
        ([committed("one"), guess(0, "two")], ("one", "", None)),
        ([guess(0, "lost"), {"type": "turn.ended"}], ("", "", None)),
    ],
)
def test_the_answer_as_it_forms(
    page: Page, messages: list[dict[str, Any]], expected: tuple[str, str, int | None]
) -> None:
    answer = page.evaluate(
        "import('/answer.js').then(({ EMPTY, update }) => "
        f"{messages!r}.reduce(update, EMPTY))".replace("None", "null")
    )
    assert (answer["committed"], answer["guess"], answer["revised"]) == expected
