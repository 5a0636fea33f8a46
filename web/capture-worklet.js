// Turns what the microphone gives, at the context's rate, into 20 ms frames of PCM16 at 16 kHz.

const RATE_HZ = 16000;
const FRAME = 320;
const PREROLL_FRAMES = 10; // people start to speak a little before they press: 200 ms
const ZERO_CROSSINGS = 12; // on each side of the interpolation kernel
const PHASES = 64; // rows of the kernel's table between two input samples

/** Resamples by windowed-sinc interpolation; the low-pass keeps what 16 kHz can hold. */
class Resampler {
  constructor(inputHz) {
    this.step = inputHz / RATE_HZ;
    this.half = Math.ceil(ZERO_CROSSINGS * Math.max(1, this.step));
    this.kernels = Array.from({ length: PHASES }, (_, row) => this.kernel(row / PHASES));
    this.input = new Float32Array(2 * this.half);
    this.position = this.half;
  }

  /** Kernel values for an output that lies `phase` (0 to 1) behind an input sample. */
  kernel(phase) {
    const cutoff = 0.92 / Math.max(1, this.step);
    const taps = new Float32Array(2 * this.half);
    let sum = 0;
    for (let i = 0; i < taps.length; i++) {
      const t = i - this.half + 1 - phase;
      const x = Math.PI * cutoff * t;
      const window = 0.5 + 0.5 * Math.cos((Math.PI * t) / (this.half + 1));
      taps[i] = (x === 0 ? 1 : Math.sin(x) / x) * window;
      sum += taps[i];
    }
    return taps.map((tap) => tap / sum);
  }

  /** The output samples that the new input completes. */
  push(samples) {
    const input = new Float32Array(this.input.length + samples.length);
    input.set(this.input);
    input.set(samples, this.input.length);
    const output = [];
    while (this.position + this.half < input.length) {
      const whole = Math.floor(this.position);
      const taps = this.kernels[Math.floor((this.position - whole) * PHASES)];
      let value = 0;
      for (let i = 0; i < taps.length; i++) value += taps[i] * input[whole - this.half + 1 + i];
      output.push(value);
      this.position += this.step;
    }
    const done = Math.floor(this.position) - this.half;
    this.input = input.slice(done);
    this.position -= done;
    return output;
  }
}

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = sampleRate === RATE_HZ ? null : new Resampler(sampleRate);
    this.frame = new Int16Array(FRAME);
    this.filled = 0;
    this.preroll = [];
    this.active = false;
    this.port.onmessage = ({ data }) => (data === "start" ? this.start() : this.stop());
  }

  start() {
    this.active = true;
    for (const frame of this.preroll) this.emit(frame);
    this.preroll = [];
  }

  stop() {
    if (this.active) this.emit(this.frame.slice(0, this.filled));
    this.active = false;
    this.filled = 0;
    this.port.postMessage("stopped");
  }

  emit(frame) {
    this.port.postMessage(frame.buffer, [frame.buffer]);
  }

  process([[channel]]) {
    if (!channel) return true; // the microphone has not started yet, or was taken away
    for (const value of this.resampler ? this.resampler.push(channel) : channel) {
      this.frame[this.filled++] = Math.max(-1, Math.min(1, value)) * 32767;
      if (this.filled === FRAME) this.finish();
    }
    return true;
  }

  finish() {
    const frame = this.frame.slice();
    this.filled = 0;
    if (this.active) {
      this.emit(frame);
    } else {
      this.preroll.push(frame);
      if (this.preroll.length > PREROLL_FRAMES) this.preroll.shift();
    }
  }
}

registerProcessor("capture", Capture);
