// The openai package of npm.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];
const parameters = { type: "object", properties: { seconds: { type: "integer" } } };
const tools = [{ type: "function", function: { name: "set_timer", parameters } }];
const ask = { model: "ember", messages };

const whole = await client.chat.completions.create(ask);
assert.equal(whole.choices[0].message.content, "Grüß Gott 👋");

let text = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  text += chunk.choices[0].delta.content ?? "";
}
assert.equal(text, "Grüß Gott 👋");

const stream = client.chat.completions.stream({ ...ask, tools });
const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
assert.deepEqual(JSON.parse(call.function.arguments), { seconds: 300 });

await assert.rejects(
  client.chat.completions.create({ ...ask, temperature: 3 }),
  (error) => error.status === 400 && error.param === "temperature",
);
