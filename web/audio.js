// Sound in and out: the microphone as PCM16 frames, and gapless playback of the answer.

const LISTEN_RATE_HZ = 16000;
const LEAD_S = 0.03; // scheduling this far ahead hides the jitter of the main thread
const STOP_TIMEOUT_MS = 300;
const FADE_MS = 15; // cutting a sound off in the middle of a wave clicks
const DUCK_S = 0.02; // time constant of becoming softer

/** The microphone. It is opened at the first use and stays open until `close`. */
export class Microphone {
  #onFrame;
  #opening = null;
  #context = null;
  #stream = null;
  #node = null;
  #stopped = null;

  /** onFrame(ArrayBuffer): PCM16 at 16 kHz, 20 ms each; the last of an utterance is shorter. */
  constructor(onFrame) {
    this.#onFrame = onFrame;
  }

  /** Ask for it. Rejects with an Error whose message tells the user what is wrong. */
  async open() {
    this.#opening ??= this.#open();
    try {
      await this.#opening;
    } catch (error) {
      this.close();
      throw new Error(explain(error), { cause: error });
    }
    await this.#context.resume();
  }

  /** Start to give frames, beginning a little before now. */
  start() {
    this.#node.port.postMessage("start");
  }

  /** Stop; resolves when the last frame was given. */
  async stop() {
    if (!this.#node) return;
    await new Promise((resolve) => {
      this.#stopped = resolve;
      setTimeout(resolve, STOP_TIMEOUT_MS); // the browser may have taken the sound thread away
      this.#node.port.postMessage("stop");
    });
  }

  /** Let go of the microphone, so that the browser stops showing that it is in use. */
  close() {
    this.#opening = null;
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#context?.close();
    this.#stream = this.#context = this.#node = null;
    this.#stopped?.();
  }

  async #open() {
    const audio = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    this.#stream = await navigator.mediaDevices.getUserMedia({ audio });
    let source;
    try {
      this.#context = new AudioContext({ sampleRate: LISTEN_RATE_HZ });
      source = this.#context.createMediaStreamSource(this.#stream);
    } catch {
      // Firefox cannot connect a microphone to a context of another rate: the worklet resamples.
      this.#context = new AudioContext();
      source = this.#context.createMediaStreamSource(this.#stream);
    }
    await this.#context.audioWorklet.addModule(new URL("capture-worklet.js", import.meta.url));
    this.#node = new AudioWorkletNode(this.#context, "capture", { numberOfOutputs: 0 });
    this.#node.port.onmessage = ({ data }) => (data === "stopped" ? this.#stopped?.() : this.#onFrame(data));
    source.connect(this.#node);
  }
}

function explain(error) {
  if (!navigator.mediaDevices) return "The microphone works only on https pages or on localhost.";
  if (error.name === "NotAllowedError") return "Allow the microphone in the browser to talk.";
  if (error.name === "NotFoundError") return "No microphone was found.";
  return `The microphone cannot be used: ${error.message}`;
}

/** Plays PCM16 pieces one after the other without gaps. */
export class Player {
  #context;
  #output;
  #meter;
  #sources = new Set();
  #endTime = 0;
  #scheduled = 0;
  #onChange;

  /** onChange(isPlaying) is called when sound starts and when the last piece has ended. */
  constructor(rateHz, onChange) {
    this.#context = new AudioContext({ sampleRate: rateHz });
    this.#meter = new AnalyserNode(this.#context, { fftSize: 512 });
    this.#meter.connect(this.#context.destination);
    this.#output = this.#newOutput();
    this.#onChange = onChange;
  }

  /** Browsers let a page make sound only after the user did something: call this from there. */
  unlock() {
    return this.#context.resume();
  }

  /** A new answer begins, as loud as ever; `playedMs` counts from here. */
  begin() {
    this.#scheduled = 0;
    this.setGain(1);
  }

  /** What comes next is the answer from here on. */
  resumeAt(atMs) {
    this.#scheduled = atMs / 1000;
  }

  /** How much of the answer has sounded. */
  playedMs() {
    const left = Math.max(0, this.#endTime - this.#context.currentTime);
    return Math.round(1000 * Math.max(0, this.#scheduled - left));
  }

  /** Play so loud from now on, 0 to 1. */
  setGain(gain) {
    this.#output.gain.setTargetAtTime(gain, this.#context.currentTime, DUCK_S);
  }

  play(pcm) {
    const values = new Int16Array(pcm);
    if (!values.length) return;
    const buffer = this.#context.createBuffer(1, values.length, this.#context.sampleRate);
    buffer.copyToChannel(Float32Array.from(values, (value) => value / 32768), 0);
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#output);
    source.onended = () => this.#ended(source);
    const start = Math.max(this.#endTime, this.#context.currentTime + LEAD_S);
    source.start(start);
    this.#endTime = start + buffer.duration;
    this.#scheduled += buffer.duration;
    if (!this.#sources.size) this.#onChange(true);
    this.#sources.add(source);
  }

  /** Fade out and forget everything that waits. */
  flush(fadeMs = FADE_MS) {
    if (!this.#sources.size) return;
    this.#scheduled = this.playedMs() / 1000;
    const now = this.#context.currentTime;
    const end = now + fadeMs / 1000;
    this.#output.gain.cancelScheduledValues(now);
    this.#output.gain.setValueAtTime(this.#output.gain.value, now);
    this.#output.gain.linearRampToValueAtTime(0, end);
    for (const source of this.#sources) {
      source.onended = null;
      source.stop(end);
    }
    this.#sources.clear();
    this.#endTime = 0;
    this.#output = this.#newOutput();
    this.#onChange(false);
  }

  /** Loudness of what sounds right now, 0 to 1. */
  level() {
    const wave = new Float32Array(this.#meter.fftSize);
    this.#meter.getFloatTimeDomainData(wave);
    return Math.sqrt(wave.reduce((sum, value) => sum + value * value, 0) / wave.length);
  }

  close() {
    this.flush();
    this.#context.close();
  }

  #newOutput() {
    const output = new GainNode(this.#context);
    output.connect(this.#meter);
    return output;
  }

  #ended(source) {
    this.#sources.delete(source);
    if (!this.#sources.size) this.#onChange(false);
  }
}
