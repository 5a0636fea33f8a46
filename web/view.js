// The conversation on the page: one article for each turn.

import { EMPTY, update } from "./answer.js";

const OUTCOMES = {
  no_speech: "No speech was heard.",
  cancelled: "Stopped.",
  failed: "The answer failed.",
};

const TIMES = [
  ["asr_ms", "speech to text"],
  ["first_commit_ms", "first text"],
  ["first_audio_ms", "first sound"],
  ["total_ms", "total"],
];

export class Conversation {
  #root;
  #announcer;
  #turns = new Map();
  #hearing = null;

  constructor(root, announcer) {
    this.#root = root;
    this.#announcer = announcer;
  }

  /** Show what a server message with a turn number says. */
  show(message) {
    const turn = this.#turns.get(message.turn) ?? this.#add(message.turn);
    if (message.type === "transcript") {
      turn.question.textContent = message.text;
      this.#hearing?.remove();
    }
    turn.answer = update(turn.answer, message);
    render(turn);
    if (message.type === "audio.stop") cut(turn, message.heard);
    if (message.type === "turn.ended") this.#finish(turn, message);
    this.#scroll();
  }

  /** Show what the user is saying, as far as it is understood. */
  showHearing({ speaking, text }) {
    this.#hearing ??= element("p", "question hearing");
    this.#hearing.textContent = text || (speaking ? "\u2026" : "");
    this.#root.append(this.#hearing);
    this.#scroll();
  }

  /** A new connection counts its turns from 1 again; what was said stays on the page. */
  forgetTurns() {
    for (const turn of this.#turns.values()) turn.article.classList.remove("running");
    this.#turns.clear();
  }

  #add(number) {
    const article = element("article", "turn running");
    const question = element("p", "question");
    const body = element("p", "answer");
    const [committed, kept, revised] = ["committed", "guess", "guess revised"].map((name) => element("span", name));
    body.append(committed, kept, revised);
    article.append(question, body);
    this.#root.append(article);
    const turn = { article, question, body, committed, kept, revised, answer: EMPTY };
    this.#turns.set(number, turn);
    return turn;
  }

  #finish(turn, { outcome, times, usage }) {
    turn.article.classList.remove("running");
    turn.article.dataset.outcome = outcome;
    if (OUTCOMES[outcome]) turn.article.append(element("p", "outcome", OUTCOMES[outcome]));
    const facts = describe(times, usage);
    if (facts.length) turn.article.append(element("p", "times", facts.join(" · ")));
    // Screen readers get the answer once and whole, not every guess.
    this.#announcer.textContent = turn.answer.committed || OUTCOMES[outcome] || "";
  }

  #scroll() {
    const { scrollHeight, clientHeight, scrollTop } = this.#root;
    // Whoever scrolled up to read is left there.
    if (scrollHeight - clientHeight - scrollTop < 200) this.#root.scrollTop = scrollHeight;
  }
}

function render(turn) {
  const { answer } = turn;
  const cut = answer.revised ?? answer.guess.length;
  turn.committed.textContent = answer.committed;
  turn.kept.textContent = answer.guess.slice(0, cut);
  const rewritten = answer.guess.slice(cut);
  if (rewritten === turn.revised.textContent) return;
  const flash = element("span", "guess revised", rewritten); // a new element highlights anew
  turn.revised.replaceWith(flash);
  turn.revised = flash;
}

// Dim what was not heard; `heard` has the words that were, without line breaks.
function cut(turn, heard) {
  const text = turn.answer.committed;
  const numWords = heard.split(/\s+/).filter(Boolean).length;
  const words = [...text.matchAll(/\S+/g)];
  if (numWords >= words.length) return;
  const at = words[numWords].index;
  turn.committed.replaceChildren(text.slice(0, at), element("span", "unheard", text.slice(at)));
}

function describe(times, usage) {
  const facts = TIMES.filter(([key]) => times[key]).map(([key, name]) => `${name} ${duration(times[key])}`);
  if (usage?.num_forwards) {
    const perForward = usage.num_completion_tokens / usage.num_forwards;
    facts.push(`${usage.num_completion_tokens} tokens, ${perForward.toFixed(1)} per forward`);
  }
  return facts;
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function element(name, className, text = "") {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  return node;
}
