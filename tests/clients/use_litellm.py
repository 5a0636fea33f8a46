"""litellm, as a client of OpenAI and of Inception."""

import json
import sys

import litellm

GREETING = "Grüß Gott 👋"
MESSAGES = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "properties": {"seconds": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "set_timer", "parameters": PARAMETERS}}


def ask(provider, **options):
    """One completion."""
    return litellm.completion(
        model=f"{provider}/ember",
        api_base=f"{sys.argv[1]}/v1",
        api_key="none",
        messages=MESSAGES,
        num_retries=0,
        **options,
    )


for provider in ("openai", "inception"):
    assert ask(provider, max_tokens=9).choices[0].message.content == GREETING
    chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == GREETING, text
    (call,) = ask(provider, tools=[TOOL]).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"seconds": 300}
    rebuilt = litellm.stream_chunk_builder(list(ask(provider, tools=[TOOL], stream=True)))
    (call,) = rebuilt.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"seconds": 300}
    try:
        ask(provider, temperature=3)
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a temperature of 3 was answered")
