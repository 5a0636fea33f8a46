"""What an answer may be: JSON of a schema, a choice, a pattern, a grammar, calls of tools.

A wish becomes a grammar of llguidance, checked once and kept. What cannot be enforced is refused
here, before anything is queued, with the keyword named. Knows nothing of engines or canvases.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from llm.engine.constraint import OPENING, Closers
from llm.tokenizer import Tokenizer
from llm.types import (
    ChoiceGrammar,
    Grammar,
    GrammarError,
    JsonObjectGrammar,
    JsonSchemaGrammar,
    LarkGrammar,
    RegexGrammar,
    Tool,
    ToolGrammar,
)

MAX_BYTES = 64 * 1024
MAX_DEPTH = 32
LARGEST_INTEGER = 2**53 - 1
"""Beyond it readers of JSON disagree about the number (I-JSON, RFC 7493, section 2.2)."""

CACHE_BYTES = 8 * 1024 * 1024

CALL_OPENS, CALL_CLOSES = "<tool_call>", "</tool_call>"

_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How the model was taught to write JSON: one way, so that most of it is forced."""

_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, max_items_in_row=2000
)

_IGNORED = ("$schema", "$id", "$comment", "title", "description", "default", "examples")
_NAMES = ("/properties", "/$defs", "/definitions", "/patternProperties", "/dependentSchemas")
"""What is inside these has names of the caller's, not keywords."""

_UNENFORCED = (
    "not",
    "if",
    "dependentSchemas",
    "dependentRequired",
    "unevaluatedProperties",
    "unevaluatedItems",
    "uniqueItems",
    "contains",
    "propertyNames",
    "contentSchema",
)


class Grammars:
    """Compiles what callers wish for one tokenizer, and keeps what was compiled lately.

    eos_ids: the tokens that end the text where the grammar accepts.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Collection[int]) -> None:
        ends = sorted(eos_ids) or [0]
        vocabulary = TokenizerWrapper(_Vocabulary(tokenizer, ends[0]))
        self._tokenizer = LLTokenizer(vocabulary, eos_token=ends)
        self.closers = Closers.of(tokenizer)
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._num_bytes = 0

    def matcher(self, grammar: Grammar, tools: Sequence[Tool] = ()) -> LLMatcher:
        """A matcher at the start of the grammar; tools: what a ToolGrammar may call.

        With tools and mode `auto` it is for calls whose `<tool_call` was just written. Raises
        GrammarError where it cannot be enforced, naming why.
        """
        source = _source(grammar, tools)
        if isinstance(grammar, ToolGrammar) and grammar.mode == "auto":
            opens = f"start: {_quoted(CALL_OPENS)} "
            assert source.startswith(opens), "a call opens with its tag"
            rest = CALL_OPENS.removeprefix(OPENING.decode())
            source = f"start: {_quoted(rest)} {source.removeprefix(opens)}"
        return self._compiled(source)

    def _compiled(self, source: str) -> LLMatcher:
        if source not in self._kept:
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
            if matcher.is_error():
                raise GrammarError(_reason(matcher.get_error()))
            # Says at once what a state too complex would say late.
            matcher.compute_bitmask()
            if matcher.is_error():
                raise GrammarError(f"the grammar is too complex: {_reason(matcher.get_error())}")
            self._keep(source, matcher)
        self._kept.move_to_end(source)
        return self._kept[source].deep_copy()

    def _keep(self, source: str, matcher: LLMatcher) -> None:
        self._kept[source] = matcher
        self._num_bytes += len(source)
        while self._num_bytes > CACHE_BYTES and len(self._kept) > 1:
            dropped, _ = self._kept.popitem(last=False)
            self._num_bytes -= len(dropped)


class _Vocabulary:
    """A tokenizer as llguidance wants to see it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        self.eos_token_id = eos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        # Control tokens add no text; they get a name that no text can have.
        self.special_token_ids = [i for i, token in enumerate(self.tokens) if not token]
        for i in self.special_token_ids:
            self.tokens[i] = f"<|control_{i}|>".encode()
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def _source(grammar: Grammar, tools: Sequence[Tool]) -> str:
    match grammar:
        case JsonSchemaGrammar(schema):
            return "start: %json " + json.dumps(_checked_schema(schema) | {"x-guidance": _JSON})
        case JsonObjectGrammar():
            return "start: %json " + json.dumps({"type": "object", "x-guidance": _JSON})
        case RegexGrammar(pattern):
            _check_size(pattern)
            return LLMatcher.grammar_from_regex(pattern)
        case ChoiceGrammar(choices):
            if not choices or not all(choices):
                raise GrammarError("a choice needs texts to choose from, none of them empty")
            _check_size("".join(choices))
            return "start: " + " | ".join(map(_quoted, choices))
        case LarkGrammar(text):
            _check_size(text)
            return text
        case ToolGrammar():
            return _tool_source(grammar, tools)


def _tool_source(grammar: ToolGrammar, tools: Sequence[Tool]) -> str:
    """One call, or several, each on a line of its own."""
    offered = [tool for tool in tools if grammar.name in {None, tool.name}]
    if not offered:
        named = f" named '{grammar.name}'" if grammar.name else ""
        raise GrammarError(f"tool_choice asks for a tool{named}, which is not among tools")
    calls, rules = [], []
    for index, tool in enumerate(offered):
        schema = _checked_schema(json.dumps(dict(tool.parameters)), f"tools.{tool.name}.parameters")
        if schema.setdefault("type", "object") != "object":
            raise GrammarError(f"the parameters of tool '{tool.name}' must be an object")
        head = _quoted(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        calls.append(f"call_{index}")
        rules.append(f'call_{index}: {head} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: %json {json.dumps(schema | {'x-guidance': _JSON})}")
    opens, closes = _quoted(CALL_OPENS), _quoted(CALL_CLOSES)
    more = f" ({_quoted(chr(10) + CALL_OPENS)} call {closes}){{0,7}}" if grammar.parallel else ""
    start = f"start: {opens} call {closes}{more}"
    return "\n".join([start, f"call: {' | '.join(calls)}", *rules])


def _quoted(text: str) -> str:
    return json.dumps(text)


def _check_size(text: str) -> None:
    if len(text.encode()) > MAX_BYTES:
        raise GrammarError(f"a grammar may have {MAX_BYTES} bytes at most")


def _checked_schema(text: str, where: str = "json_schema") -> dict[str, Any]:
    """The schema as an object, if it is one that can be enforced."""
    _check_size(text)
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise GrammarError(f"{where} is not JSON: {error}") from error
    except RecursionError as error:
        raise GrammarError(f"{where} is nested deeper than {MAX_DEPTH} levels") from error
    if not isinstance(schema, dict):
        raise GrammarError(f"{where} must be an object")
    for path, depth, value in _walk(schema, where):
        if depth > 4 * MAX_DEPTH:
            raise GrammarError(f"{where} is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            if value.get("type") == "integer":
                # Without an end small models write zeros until the budget is used up.
                value.setdefault("minimum", -LARGEST_INTEGER)
                value.setdefault("maximum", LARGEST_INTEGER)
            for keyword in _UNENFORCED:
                if keyword not in value or path.endswith(_NAMES):
                    continue
                if value[keyword] is not False:
                    raise GrammarError(f"'{keyword}' at {path} cannot be enforced")
                del value[keyword]
    return {key: value for key, value in schema.items() if key not in _IGNORED}


def _walk(schema: object, where: str) -> Iterator[tuple[str, int, object]]:
    """Every value inside, with its place and depth; without recursion, since depth is hostile."""
    waiting: list[tuple[str, int, object]] = [(where, 0, schema)]
    while waiting:
        path, depth, value = waiting.pop()
        yield path, depth, value
        if isinstance(value, dict):
            waiting += [
                (f"{path}/{key}", depth + 1, inner)
                for key, inner in value.items()
                if key not in {"enum", "const", *_IGNORED}
            ]
        elif isinstance(value, list):
            waiting += [(f"{path}/{i}", depth + 1, inner) for i, inner in enumerate(value)]


def _reason(error: str) -> str:
    """The first line of what llguidance says, without its traces."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return f"the grammar cannot be used: {lines[0] if lines else 'it does not compile'}"[:300]
