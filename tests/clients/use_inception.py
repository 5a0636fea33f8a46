"""The inceptionai package: chat, diffusing streams, infilling, edits, models."""

import sys

import inceptionai

GREETING = "Grüß Gott 👋"
MESSAGES = [{"role": "user", "content": "Hi"}]
EDIT = "<|current_file_content|>\n<|code_to_edit|>x = 1<|/code_to_edit|>\n<|/current_file_content|>"
client = inceptionai.Inception(
    base_url=sys.argv[1], api_key="none", max_retries=0, _strict_response_validation=True
)
chat = client.chat.completions

answer = chat.create(model="mercury-2", messages=MESSAGES, reasoning_effort="instant")
assert answer.choices[0].message.content == GREETING
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
assert answer.usage.completion_tokens_details.reasoning_tokens == 0

chunks = list(chat.create(model="ember", messages=MESSAGES, stream=True))
assert "".join(c.choices[0].delta.content or "" for c in chunks) == GREETING

shown = [
    chunk.choices[0].delta.content
    for chunk in chat.create(model="ember", messages=MESSAGES, stream=True, diffusing=True)
    if chunk.choices[0].delta.content
]
assert shown[0] == "Guten Tag"
assert shown[-1] == GREETING

fim = client.fim.completions.create(model="mercury-edit-2", prompt="def f(a, b):", suffix="")
assert fim.choices[0].text == "return a + b"
pieces = client.fim.completions.create(model="ember", prompt="def f", stream=True)
assert "".join(piece.choices[0].text or "" for piece in pieces) == "return a + b"

edit = client.edit.completions.create(
    model="mercury-edit-2", messages=[{"role": "user", "content": EDIT}]
)
assert edit.choices[0].message.content == "x = 2"

for models in (client.models.list(), client.models.list_fim(), client.models.list_chat()):
    assert [model.id for model in models.data] == ["ember"]
try:
    chat.create(model="ember", messages=[])
except inceptionai.BadRequestError as error:
    assert "messages" in str(error)
else:
    raise AssertionError("no messages were answered")
