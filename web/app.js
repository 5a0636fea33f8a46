// Ties the page together: what the user does, what the server says, and what sounds.

import { Microphone, Player } from "./audio.js";
import { Connection } from "./connection.js";
import { Conversation } from "./view.js";

const SHORT_PRESS_MS = 350; // a shorter press keeps listening until the next one

const page = document.body;
const [talk, hint, ask, question, sendButton, stop, notice, connectionLabel] = [
  "talk", "hint", "ask", "question", "send", "stop", "notice", "connection",
].map((id) => document.getElementById(id));

const conversation = new Conversation(
  document.getElementById("conversation"),
  document.getElementById("announcer"),
);
const microphone = new Microphone((frame) => {
  if (frame.byteLength) connection.sendAudio(frame);
});
let player = null;
let isListening = false; // the user holds the button, or pressed it shortly
let hasStarted = false; // speech.start was sent
let isPlaying = false;
let newestTurn = 0; // as the server counts: one for each speech.start or text
let runningTurn = null; // the newest turn while it is being answered
let audioTurn = null; // the turn that arriving audio belongs to
let pressedAt = 0;
let steps = Promise.resolve(); // whatever is sent goes out in the order the user did it

const connection = new Connection({ onMessage, onAudio, onState });

// ---- from the server

function onMessage(message) {
  switch (message.type) {
    case "session.ready":
      player?.close();
      player = new Player(message.output_rate_hz, (playing) => {
        isPlaying = playing;
        refresh();
      });
      setConnected(true, "Connected");
      return;
    case "audio.start":
      audioTurn = message.turn;
      return;
    case "audio.end":
      return;
    case "error":
      refused(message);
      return;
    case "turn.ended":
      if (message.turn === runningTurn) runningTurn = null;
  }
  document.getElementById("welcome")?.remove();
  conversation.show(message);
  refresh();
}

function refused({ code, message }) {
  complain(message);
  if (code === "utterance_too_long") stopListening(false);
  if (code !== "turn_failed") runningTurn = null;
  refresh();
}

function onAudio(pcm) {
  // After an interruption the last pieces of the old answer may still be on their way.
  if (audioTurn !== null && audioTurn === runningTurn) player.play(pcm);
}

function onState(state, reason) {
  setConnected(false, state === "waiting" ? "Loading" : "Reconnecting");
  connectionLabel.title = reason;
  player?.flush();
  stopListening(false);
  runningTurn = audioTurn = null;
  newestTurn = 0;
  conversation.forgetTurns();
  refresh();
}

// ---- from the user

async function startListening() {
  if (isListening || talk.disabled) return;
  isListening = true;
  complain("");
  interrupt();
  player.unlock();
  refresh();
  try {
    await microphone.open();
  } catch (error) {
    isListening = false;
    complain(error.message);
    refresh();
  }
  // Asking for permission may take longer than the press, and than several.
  next(() => {
    if (!isListening || hasStarted || !connection.send({ type: "speech.start" })) return;
    hasStarted = true;
    newestTurn += 1;
    microphone.start();
  });
}

function stopListening(shouldAnswer) {
  if (!isListening) return;
  isListening = false;
  if (hasStarted && shouldAnswer) runningTurn = newestTurn;
  refresh();
  next(async () => {
    if (!hasStarted) return;
    hasStarted = false;
    await microphone.stop();
    connection.send({ type: shouldAnswer ? "speech.end" : "cancel" });
  });
}

function interrupt() {
  player.flush();
  if (runningTurn !== null) next(() => connection.send({ type: "cancel" }));
  runningTurn = null;
}

function next(step) {
  steps = steps.then(step).then(refresh);
}

function press() {
  pressedAt = performance.now();
  if (isListening) stopListening(true);
  else startListening();
}

function release() {
  if (isListening && performance.now() - pressedAt >= SHORT_PRESS_MS) stopListening(true);
}

talk.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  talk.setPointerCapture(event.pointerId);
  press();
});
talk.addEventListener("pointerup", release);
talk.addEventListener("pointercancel", release);
talk.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
talk.addEventListener("click", (event) => {
  if (event.detail === 0) press(); // a screen reader's click, which has no pointer
});

addEventListener("keydown", (event) => {
  if (event.key === "Escape") interruptOrForget();
  if (event.key !== " " || isTyping(event.target)) return;
  event.preventDefault();
  if (!event.repeat) press();
});
addEventListener("keyup", (event) => {
  if (event.key !== " " || isTyping(event.target)) return;
  event.preventDefault();
  release();
});

ask.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question.value.trim();
  if (!text || isListening) return;
  complain("");
  interrupt();
  player.unlock();
  next(() => {
    if (!connection.send({ type: "text", text })) return;
    question.value = "";
    newestTurn += 1;
    runningTurn = newestTurn;
  });
});

stop.addEventListener("click", interruptOrForget);

document.addEventListener("visibilitychange", () => {
  if (document.hidden && !isListening) microphone.close();
});

function interruptOrForget() {
  if (isListening) stopListening(false);
  else if (player) interrupt();
  refresh();
}

function isTyping(target) {
  return target === question || target === sendButton || target === stop;
}

// ---- what the page shows

function setConnected(isConnected, label) {
  page.dataset.connection = isConnected ? "open" : "closed";
  connectionLabel.textContent = label;
  for (const control of [talk, question, sendButton]) control.disabled = !isConnected;
}

const HINTS = {
  idle: "Hold to talk",
  opening: "Opening the microphone",
  listening: "Listening",
  thinking: "Thinking",
  speaking: "Speaking",
};

function currentState() {
  if (isListening) return hasStarted ? "listening" : "opening";
  if (isPlaying) return "speaking";
  return runningTurn === null ? "idle" : "thinking";
}

function refresh() {
  const state = currentState();
  const isBusy = state === "thinking" || state === "speaking";
  if (state === "speaking" && page.dataset.state !== "speaking") requestAnimationFrame(glow);
  page.dataset.state = state;
  talk.setAttribute("aria-pressed", String(isListening));
  hint.textContent = HINTS[state];
  stop.hidden = !isBusy;
  sendButton.hidden = isBusy;
}

function glow() {
  const isSpeaking = page.dataset.state === "speaking";
  const level = isSpeaking ? Math.min(1, 4 * player.level()) : 0;
  talk.style.setProperty("--level", level.toFixed(3));
  if (isSpeaking) requestAnimationFrame(glow);
}

function complain(text) {
  notice.textContent = text;
  notice.hidden = !text;
}
