// The WebSocket to the server, which opens again by itself.

const FIRST_DELAY_MS = 500;
const MAX_DELAY_MS = 8000;
const TRY_AGAIN_LATER = 1013;

export class Connection {
  #handlers;
  #socket = null;
  #delayMs = FIRST_DELAY_MS;

  /** handlers: onMessage(object), onAudio(ArrayBuffer), onState("connecting" | "waiting", reason). */
  constructor(handlers) {
    this.#handlers = handlers;
    this.#open();
  }

  /** Send a message. False when there is no connection, and then nothing is kept for later. */
  send(message) {
    return this.#transmit(JSON.stringify(message));
  }

  /** Send a piece of PCM16 audio. */
  sendAudio(buffer) {
    return this.#transmit(buffer);
  }

  #transmit(data) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(data);
    return true;
  }

  #open() {
    const url = new URL("v1/voice", document.baseURI);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = (event) => this.#reopen(event);
    this.#socket = socket;
  }

  #receive(data) {
    if (typeof data !== "string") {
      this.#handlers.onAudio(data);
      return;
    }
    const message = JSON.parse(data);
    // Only a session counts as success: a server that is loading accepts and closes at once.
    if (message.type === "session.ready") this.#delayMs = FIRST_DELAY_MS;
    this.#handlers.onMessage(message);
  }

  #reopen({ code, reason }) {
    if (code === TRY_AGAIN_LATER) this.#delayMs = FIRST_DELAY_MS;
    this.#handlers.onState(code === TRY_AGAIN_LATER ? "waiting" : "connecting", reason);
    // Spread out, so that all the pages of a restarted server do not come back at once.
    setTimeout(() => this.#open(), this.#delayMs * (0.75 + Math.random() / 2));
    this.#delayMs = Math.min(2 * this.#delayMs, MAX_DELAY_MS);
  }
}
