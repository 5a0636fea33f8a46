"""Text to token ids and back, for byte-level BPE vocabularies.

User text can never produce a control token: the tokenizer proper does not know them, and only
`encode_prompt` puts them in, where the chat template wrote them.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from tokenizers import Tokenizer as BpeTokenizer
from tokenizers import decoders, models, pre_tokenizers

from llm.models.checkpoint import TokenizerData

_GUARD = "\ue000"
"""A private-use character that keeps control tokens apart which the user typed as text."""


_SLICE_CHARACTERS = 4096


class Tokenizer:
    """A byte-level BPE tokenizer with control tokens kept apart."""

    def __init__(self, data: TokenizerData) -> None:
        vocabulary = {token: index for index, token in enumerate(data.tokens)}
        merges = [(left, right) for left, _, right in (m.partition(" ") for m in data.merges)]
        self._bpe = BpeTokenizer(models.BPE(vocab=vocabulary, merges=merges))
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        self._bpe.decoder = decoders.ByteLevel()
        self._special = {data.tokens[i]: i for i in data.special_ids}
        self._special_pattern = re.compile(
            "(" + "|".join(re.escape(t) for t in sorted(self._special, key=len, reverse=True)) + ")"
        )
        self._bytes = _token_bytes(data)
        self.vocab_size = len(data.tokens)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a control token stays text."""
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids

    def exceed(self, texts: Iterable[str], num_tokens: int) -> bool:
        """Whether texts surely have more tokens than that; reads no more than it takes to say so.

        Encoding a megabyte takes a second, in which nobody else would be served.
        """
        count = 0
        for text in texts:
            for start in range(0, len(text), _SLICE_CHARACTERS):
                count += len(self.encode(text[start : start + _SLICE_CHARACTERS]))
                # Where a slice ends, a token may be cut into some: never into twice as many in all.
                if count > 2 * num_tokens:
                    return True
        return False

    def guard(self, text: str) -> str:
        """Mark control tokens in user text so that `encode_prompt` takes them as plain text."""
        return self._special_pattern.sub(
            lambda found: found[0][0] + _GUARD + found[0][1:], text.replace(_GUARD, "")
        )

    def encode_prompt(self, rendered: str) -> list[int]:
        """Ids of a rendered chat template: guarded user text among control tokens."""
        ids: list[int] = []
        for piece in self._special_pattern.split(rendered):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids.extend(self.encode(piece.replace(_GUARD, "")))
        return ids

    def id_of(self, special: str) -> int:
        """Id of a control token; KeyError if there is none of that name."""
        return self._special[special]

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text: UTF-8, possibly part of a character; none if control."""
        return self._bytes[token_id]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a whole sequence, control tokens left out."""
        return b"".join(self._bytes[i] for i in ids).decode("utf-8", errors="replace")


class TextDecoder:
    """Ids to text piece by piece; a character split over tokens waits until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Text that became whole with these tokens."""
        return self._utf8.decode(b"".join(self._tokenizer.token_bytes(i) for i in ids))

    def peek(self, ids: Iterable[int]) -> str:
        """Text that `feed` would give, without taking the tokens in."""
        state = self._utf8.getstate()
        text = self.feed(ids)
        self._utf8.setstate(state)
        return text

    def finish(self) -> str:
        """What is left: a replacement character where the text ended inside a character."""
        return self._utf8.decode(b"", final=True)


def _token_bytes(data: TokenizerData) -> list[bytes]:
    # GPT-2's byte-level alphabet: printable bytes stand for themselves, the other 68 for the
    # code points from 256 on, in order.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + index): byte for index, byte in enumerate(others)}
    return [
        b"" if index in data.special_ids else bytes(alphabet[character] for character in token)
        for index, token in enumerate(data.tokens)
    ]
