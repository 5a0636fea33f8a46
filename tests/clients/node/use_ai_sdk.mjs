// The AI SDK's provider for servers that speak OpenAI's language.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool, jsonSchema } from "ai";

const baseURL = `${process.argv[2]}/v1`;
const provider = createOpenAICompatible({ name: "ember", baseURL, includeUsage: true });
const model = provider.chatModel("ember");
const inputSchema = jsonSchema({ type: "object", properties: { seconds: { type: "integer" } } });
const tools = { set_timer: tool({ description: "Set a timer.", inputSchema }) };

const { text, usage } = await generateText({ model, prompt: "Hi", maxRetries: 0 });
assert.equal(text, "Grüß Gott 👋");
assert.equal(usage.totalTokens, 10);

const stream = streamText({ model, prompt: "Hi", maxRetries: 0 });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
assert.equal(streamed, "Grüß Gott 👋");

const calls = await streamText({ model, prompt: "Five minutes", tools, maxRetries: 0 }).toolCalls;
assert.deepEqual(calls[0].input, { seconds: 300 });
