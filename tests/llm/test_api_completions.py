"""Text completions and infilling, over a socket, with the real client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.api.completions import anchor
from llm.api.stream import Completion
from llm.api.text_chunks import TextChoice, fold_text
from llm.types import Committed, Request, TokenLogprobs
from tests.llm.api_server import Api
from tests.llm.fakes import STOP, USAGE

FIM = "fim/completions"


def test_a_text_goes_on(api: Api) -> None:
    completion = api.client.completions.create(model="tiny", prompt="Once", max_tokens=4)
    assert completion.object == "text_completion"
    assert completion.choices[0].text == "Hello there."
    assert completion.choices[0].finish_reason == "stop"
    assert api.request == Request((), prompt="Once", max_new_tokens=4)


def test_a_stream_says_the_same(api: Api) -> None:
    # Its types know no chunk before the last, where the reason of the end is null.
    client = openai.OpenAI(api_key="none", base_url=api.url, max_retries=0)
    chunks = list(
        client.completions.create(
            model="tiny", prompt="Once", stream=True, stream_options={"include_usage": True}
        )
    )
    assert [c.choices[0].text for c in chunks[:-1]] == ["Hello", " there.", ""]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


def test_usage_is_sent_only_when_asked_for(api: Api) -> None:
    assert all("usage" not in c for c in api.chunks("completions", prompt="Once"))


def test_each_prompt_has_its_choices(api: Api) -> None:
    completion = api.client.completions.create(
        model="tiny", prompt=["a", "b"], n=2, echo=True, seed=1, temperature=1
    )
    assert [c.text for c in completion.choices] == [
        "aHello there.",
        "aHello there.",
        "bHello there.",
        "bHello there.",
    ]
    assert [(r.prompt, r.sampling.seed) for r in api.engine.requests] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 2 * USAGE.num_prompt_tokens
    assert completion.usage.completion_tokens == 4 * USAGE.num_completion_tokens


def test_log_probabilities_have_offsets(api: Api) -> None:
    tokens = tuple(TokenLogprobs(t, -0.5, ((t, -0.5), (9, float("-inf")))) for t in (5, 6))
    api.answer(Committed("a", tokens[:1]), Committed("b", tokens[1:]), STOP)
    completion = api.client.completions.create(model="tiny", prompt="x", echo=True, logprobs=2)
    told = completion.choices[0].logprobs
    assert told is not None
    assert told.tokens == ["<5>", "<6>"]
    assert told.text_offset == [1, 4]
    assert told.token_logprobs == [-0.5, -0.5]
    assert told.top_logprobs == [{"<5>": -0.5, "<9>": -9999.0}, {"<6>": -0.5, "<9>": -9999.0}]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["x"] * 17}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": False}, "logprobs"),
        ({"n": 9}, "n"),
        ({"best_of": 2}, None),
        ({"prompt": ["x"] * 16, "n": 3}, None),
    ],
)
def test_what_is_not_served_is_refused(api: Api, change: Any, param: str | None) -> None:
    response = api.post({"model": "tiny", "prompt": "x", **change}, "completions")
    assert response.status_code == 400
    named = response.json()["error"]["param"]
    assert named == param or named.split(".")[0] == param
    assert not api.engine.requests


def test_infilling_ends_where_the_suffix_begins(api: Api) -> None:
    body = {"model": "mercury-edit-2", "prompt": "def f(", "suffix": "\n    return x\n"}
    answer = api.post({**body, "temperature": 0.0, "top_k": -1}, FIM).json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["choices"][0]["text"] == "Hello there."
    assert api.request.stop == ("\n\n", "\n \n", "    return x")
    assert api.request.max_new_tokens == 512
    api.post({**body, "stop": ["END"]}, FIM)
    assert api.request.stop == ("END", "    return x")


def test_infilling_streams(api: Api) -> None:
    chunks = api.chunks(FIM, prompt="def f(", suffix="<|endoftext|>")
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert "".join(c["choices"][0]["text"] for c in chunks) == "Hello there."
    assert api.request.stop == ("\n\n", "\n \n")


@pytest.mark.parametrize(
    ("suffix", "stops"),
    [
        (None, ()),
        ("", ()),
        ("\n\n  \n", ()),
        (")\n", ()),
        ("<|endoftext|>", ()),
        ("\n\tdone()  \nmore", ("\tdone()",)),
    ],
)
def test_the_anchor_of_a_suffix(suffix: str | None, stops: tuple[str, ...]) -> None:
    assert anchor(suffix) == stops


def test_an_unknown_model_is_named(api: Api) -> None:
    with pytest.raises(openai.NotFoundError, match="'x' does not exist"):
        api.client.completions.create(model="x", prompt="Once")


@given(st.lists(st.text(max_size=4)), st.text(max_size=3))
def test_the_whole_is_the_fold_of_the_chunks(pieces: list[str], echo: str) -> None:
    completion = Completion("id", 1, "tiny", lambda _: b"", "text_completion")
    choice = TextChoice(completion, 0, echo=echo)
    chunks = list(choice.begin())
    for event in [*map(Committed, pieces), STOP]:
        chunks += choice.take(event)
    whole = fold_text([*chunks, completion.usage_chunk([USAGE], 1)])
    assert whole["choices"][0]["text"] == echo + "".join(pieces)
    assert whole["choices"][0]["finish_reason"] == "stop"
