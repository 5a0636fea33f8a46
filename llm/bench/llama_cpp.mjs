// The same prompts through llama.cpp, for comparison, by way of the npm package node-llama-cpp.
// node bench_llama_cpp.mjs: reads a job from stdin, {package, model, threads, prompts, newTokens},
// prompts as lists of token ids; prints {version, promptMs, promptTokens, tokenMs} as JSON.

import {readFileSync} from "node:fs";
import {pathToFileURL} from "node:url";

const job = JSON.parse(readFileSync(0, "utf-8"));
const {getLlama} = await import(pathToFileURL(`${job.package}/dist/index.js`));
const {version} = JSON.parse(readFileSync(`${job.package}/package.json`, "utf-8"));

// Only what came with the package: a benchmark must not start a compiler.
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: job.threads});
const model = await llama.loadModel({modelPath: job.model});
const context = await model.createContext({contextSize: 2048, threads: {ideal: job.threads, min: job.threads}});
const sequence = context.getSequence();

/** Milliseconds until the first token, and from there to each of the others. */
async function answer(prompt, newTokens) {
    await sequence.clearHistory();
    const started = performance.now();
    const times = [];
    for await (const _ of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        times.push(performance.now() - started);
        if (times.length === newTokens) break;
    }
    return {first: times[0], others: times.slice(1).map((time, i) => time - times[i])};
}

await answer(job.prompts[0], 8);
const answers = [];
for (const prompt of job.prompts) answers.push(await answer(prompt, job.newTokens));
console.log(JSON.stringify({
    version,
    promptMs: answers.map(({first}) => first),
    promptTokens: job.prompts.map((prompt) => prompt.length),
    tokenMs: answers.flatMap(({others}) => others),
}));
await llama.dispose();
