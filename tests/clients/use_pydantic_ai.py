"""pydantic-ai and instructor: agents that call tools, and objects."""

import asyncio
import sys

import instructor
import openai
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = f"{sys.argv[1]}/v1"


class Timer(BaseModel):
    """A timer."""

    seconds: int


model = OpenAIChatModel("ember", provider=OpenAIProvider(base_url=URL, api_key="none"))
agent = Agent(model, system_prompt="Be brief.")
asked = []


@agent.tool_plain
def set_timer(seconds: int) -> str:
    """Set a timer."""
    asked.append(seconds)
    return "ok"


assert agent.run_sync("Five minutes").output == "The timer is set."
assert asked == [300]


async def streamed() -> str:
    """The same as a stream."""
    async with agent.run_stream("Five minutes") as result:
        return await result.get_output()


assert asyncio.run(streamed()) == "The timer is set."
assert asked == [300, 300]
assert Agent(model, output_type=NativeOutput(Timer)).run_sync("x").output == Timer(seconds=300)

client = instructor.from_openai(
    openai.OpenAI(base_url=URL, api_key="none"), mode=instructor.Mode.JSON_SCHEMA
)
timer = client.chat.completions.create(
    model="ember", messages=[{"role": "user", "content": "x"}], response_model=Timer, max_retries=0
)
assert timer.seconds == 300
