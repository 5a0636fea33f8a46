"""How tools look to the model: one line each, which a small model reads better than JSON Schema.

And how its calls look: `<tool_call>{"name": "...", "arguments": {...}}</tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llm.types import Tool


def signature(tool: Tool) -> str:
    """`name(argument: type, optional?: type) - description`, on one line.

    What is no JSON Schema is shown as far as it can be read: the grammar refuses it by name.
    """
    required, properties = (tool.parameters.get(key) for key in ("required", "properties"))
    needed = required if isinstance(required, list | tuple) else ()
    schemas = properties if isinstance(properties, Mapping) else {}
    arguments = [
        f"{name}{'' if name in needed else '?'}: {_type_name(schema)}"
        for name, schema in schemas.items()
    ]
    about = f" - {' '.join(tool.description.split())}" if tool.description else ""
    return f"{tool.name}({', '.join(arguments)}){about}"


def _type_name(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return "|".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return f"{_type_name(schema['items'])}[]"
    return "|".join(map(str, kind)) if isinstance(kind, list) else str(kind)
