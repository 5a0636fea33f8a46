"""The openai package, of this line and of older ones."""

import json
import sys

import openai

GREETING = "Grüß Gott 👋"
MESSAGES = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "properties": {"seconds": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "set_timer", "parameters": PARAMETERS}}
client = openai.OpenAI(
    base_url=f"{sys.argv[1]}/v1",
    api_key="none",
    max_retries=0,
    _strict_response_validation=True,
)
chat = client.chat.completions

assert chat.create(model="ember", messages=MESSAGES).choices[0].message.content == GREETING
stream = chat.create(
    model="ember", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == GREETING
assert chunks[-1].usage.total_tokens == 10

calls = chat.create(model="ember", messages=MESSAGES, tools=[TOOL]).choices[0].message.tool_calls
assert json.loads(calls[0].function.arguments) == {"seconds": 300}
arguments = ""
for chunk in chat.create(model="ember", messages=MESSAGES, tools=[TOOL], stream=True):
    for call in chunk.choices[0].delta.tool_calls or ():
        arguments += call.function.arguments or ""
assert json.loads(arguments) == {"seconds": 300}

result = {"role": "tool", "tool_call_id": calls[0].id, "content": "ok"}
turn = {"role": "assistant", "content": None, "tool_calls": [c.model_dump() for c in calls]}
done = chat.create(model="ember", messages=[*MESSAGES, turn, result], tools=[TOOL])
assert done.choices[0].message.content == "The timer is set."

assert client.completions.create(model="ember", prompt="def f").choices[0].text == "return a + b"
assert [model.id for model in client.models.list()] == ["ember"]
assert client.models.retrieve("ember").owned_by == "ember"
try:
    chat.create(model="gpt-9", messages=MESSAGES)
except openai.NotFoundError as error:
    assert error.code == "model_not_found"
else:
    raise AssertionError("an unknown model was answered")
