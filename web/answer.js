// The text of one answer as it forms: what is final, and what is still a guess. Pure.

export const EMPTY = Object.freeze({ committed: "", guess: "", revised: null });

/**
 * The answer after one server message.
 *
 * `committed` is final text and `guess` what may follow it. `revised` is where in the
 * guess the part begins that was just rewritten, or null.
 */
export function update(answer, message) {
  switch (message.type) {
    case "answer.committed": {
      const guess = answer.guess.startsWith(message.text)
        ? answer.guess.slice(message.text.length)
        : "";
      return { committed: answer.committed + message.text, guess, revised: null };
    }
    case "answer.provisional":
      return { ...answer, guess: rewrite(answer, message), revised: null };
    case "answer.revised": {
      const guess = rewrite(answer, message);
      const points = Array.from(answer.committed + answer.guess).slice(0, message.start);
      const start = Math.max(0, points.join("").length - answer.committed.length);
      return { ...answer, guess, revised: start < guess.length ? start : null };
    }
    case "turn.ended":
      return { committed: answer.committed, guess: "", revised: null };
    default:
      return answer;
  }
}

// Final text never changes, whatever a guess says about it. Offsets count code points, as the
// server does, where JavaScript's own count UTF-16 units.
function rewrite(answer, { start, text }) {
  const shown = Array.from(answer.committed + answer.guess).slice(0, start).join("") + text;
  return shown.startsWith(answer.committed) ? shown.slice(answer.committed.length) : "";
}
