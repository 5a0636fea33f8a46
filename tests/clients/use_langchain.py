"""langchain-openai: words, streams, tools and objects."""

import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class SetTimer(BaseModel):
    """Set a timer."""

    seconds: int


model = ChatOpenAI(model="ember", base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
assert model.invoke("Hi").content == "Grüß Gott 👋"
assert "".join(chunk.content for chunk in model.stream("Hi")) == "Grüß Gott 👋"


def set_timer(seconds: int) -> str:
    """Set a timer."""
    return f"{seconds}"


(call,) = model.bind_tools([set_timer]).invoke("Five minutes").tool_calls
assert (call["name"], call["args"]) == ("set_timer", {"seconds": 300})
whole = None
for chunk in model.bind_tools([set_timer], tool_choice="any").stream("Five minutes"):
    whole = chunk if whole is None else whole + chunk
assert whole.tool_calls[0]["args"] == {"seconds": 300}
assert model.with_structured_output(SetTimer).invoke("Five minutes") == SetTimer(seconds=300)
