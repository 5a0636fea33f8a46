"""Messages to prompt ids, through the Jinja template that a checkpoint carries."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llm.tokenizer import Tokenizer
from llm.tools import signature
from llm.types import InvalidRequestError, Message, Tool


class ChatTemplate:
    """A checkpoint's chat template, rendered in a sandbox: it comes with the weights."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(source)

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        tools: Sequence[Tool] = (),
        *,
        answer_follows: bool = True,
    ) -> list[int]:
        """Prompt ids that end where the assistant's answer begins, if one is to follow.

        messages: at least one; their content is encoded as text, whatever it looks like.
        tools: what the model may call, shown by their signatures.
        Raises InvalidRequestError where the template refuses the order of roles.
        """
        if not messages:
            raise InvalidRequestError("a conversation needs at least one message")
        guard = tokenizer.guard
        turns = [
            {
                "role": m.role,
                "content": guard(m.content),
                "tool_calls": [
                    {"name": guard(c.name), "arguments": guard(c.arguments)} for c in m.tool_calls
                ],
            }
            for m in messages
        ]
        try:
            rendered = self._template.render(
                messages=turns,
                tools=[guard(signature(tool)) for tool in tools],
                add_generation_prompt=answer_follows,
            )
        except TemplateError as error:
            raise InvalidRequestError(f"the model's chat template refused: {error}") from error
        return tokenizer.encode_prompt(rendered)
