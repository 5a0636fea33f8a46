// Ties the page together: what the user does, what the server says, and what sounds.

import { Microphone, Player } from "./audio.js";
import { Connection } from "./connection.js";
import { Conversation } from "./view.js";

const REPORT_MS = 200; // how often the server learns how much of an answer has sounded
const SHORT_PRESS_MS = 350; // a shorter press keeps listening until the next one

const page = document.body;
const [talk, hint, handsFree, ask, question, sendButton, stop, notice, connectionLabel] = [
  "talk", "hint", "hands-free", "ask", "question", "send", "stop", "notice", "connection",
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
let isHandsFree = false; // the user wants to speak without the button
let isStreaming = false; // listen.start was sent
let isHeard = false; // hands-free: the server hears the user speak
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
        if (!playing) report();
        refresh();
      });
      setConnected(true, "Connected");
      if (isHandsFree) next(startStreaming);
      return;
    case "audio.start":
      audioTurn = message.turn;
      player.begin();
      return;
    case "audio.end":
      return;
    case "audio.gain":
      if (message.turn === audioTurn) player.setGain(message.gain);
      return;
    case "audio.pause":
      if (message.turn === audioTurn) player.flush(message.fade_ms);
      return;
    case "audio.resume":
      if (message.turn === audioTurn) player.resumeAt(message.at_ms);
      return;
    case "hearing":
      isHeard = message.speaking;
      document.getElementById("welcome")?.remove();
      conversation.showHearing(message);
      refresh();
      return;
    case "audio.stop":
      player.flush(message.fade_ms);
      if (message.turn === runningTurn) runningTurn = null;
      break;
    case "transcript":
      if (isStreaming) newestTurn = runningTurn = message.turn;
      break;
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
  if (isStreaming) next(() => microphone.stop());
  isStreaming = isHeard = false;
  runningTurn = audioTurn = null;
  newestTurn = 0;
  conversation.forgetTurns();
  refresh();
}

// ---- from the user

async function startListening() {
  if (isListening || isHandsFree || talk.disabled) return;
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

async function toggleHandsFree() {
  if (isHandsFree) {
    isHandsFree = false;
    interrupt();
    next(stopStreaming);
    return;
  }
  isHandsFree = true;
  complain("");
  interrupt();
  stopListening(false);
  player.unlock();
  refresh();
  try {
    await microphone.open();
  } catch (error) {
    isHandsFree = false;
    complain(error.message);
  }
  next(startStreaming);
}

function startStreaming() {
  if (!isHandsFree || isStreaming) return;
  isStreaming = connection.send({ type: "listen.start", eagerness: "" });
  if (isStreaming) microphone.start();
}

async function stopStreaming() {
  if (isHandsFree || !isStreaming) return;
  await microphone.stop();
  isStreaming = isHeard = false;
  connection.send({ type: "listen.stop" });
}

function report() {
  if (!isStreaming || audioTurn === null) return;
  connection.send({ type: "playback", turn: audioTurn, played_ms: player.playedMs() });
}

function interrupt() {
  player.flush();
  if (runningTurn !== null || isStreaming) next(() => connection.send({ type: "cancel" }));
  runningTurn = null;
}

function next(step) {
  steps = steps.then(step).then(refresh);
}

function press() {
  pressedAt = performance.now();
  if (isHandsFree) interruptOrForget();
  else if (isListening) stopListening(true);
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
    if (isStreaming) return; // the server's transcript will tell its number
    newestTurn += 1;
    runningTurn = newestTurn;
  });
});

stop.addEventListener("click", interruptOrForget);
handsFree.addEventListener("click", toggleHandsFree);
setInterval(() => isPlaying && report(), REPORT_MS);

document.addEventListener("visibilitychange", () => {
  if (document.hidden && !isListening && !isHandsFree) microphone.close();
});

function interruptOrForget() {
  if (isListening) stopListening(false);
  else if (player) interrupt();
  refresh();
}

function isTyping(target) {
  return [question, sendButton, stop, handsFree].includes(target);
}

// ---- what the page shows

function setConnected(isConnected, label) {
  page.dataset.connection = isConnected ? "open" : "closed";
  connectionLabel.textContent = label;
  for (const control of [talk, handsFree, question, sendButton]) control.disabled = !isConnected;
}

const HINTS = {
  waiting: "Just speak",
  idle: "Hold to talk",
  opening: "Opening the microphone",
  listening: "Listening",
  thinking: "Thinking",
  speaking: "Speaking",
};

function currentState() {
  if (isListening) return hasStarted ? "listening" : "opening";
  if (isHandsFree && !isStreaming) return "opening";
  if (isHeard) return "listening";
  if (isPlaying) return "speaking";
  if (isHandsFree && runningTurn === null) return "waiting";
  return runningTurn === null ? "idle" : "thinking";
}

function refresh() {
  const state = currentState();
  const isBusy = state === "thinking" || state === "speaking";
  if (state === "speaking" && page.dataset.state !== "speaking") requestAnimationFrame(glow);
  page.dataset.state = state;
  talk.setAttribute("aria-pressed", String(isListening));
  handsFree.setAttribute("aria-pressed", String(isHandsFree));
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
