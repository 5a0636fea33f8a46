"""The part of a growing transcript that can be trusted: where two hypotheses in a row agree.

LocalAgreement-2 (Macháček et al. 2023, arXiv 2307.14743): the longest common beginning of the last
two hypotheses, in words. The newest word is held back, because it is often cut off by the end of
the audio; what was agreed on once is never taken back.
"""

from __future__ import annotations

from itertools import takewhile

from voice.transcript import words_of


class Agreement:
    """Follows the hypotheses about one utterance."""

    def __init__(self) -> None:
        self.agreed = ""
        self._words: list[str] = []
        self._before: list[str] = []

    def feed(self, hypothesis: str) -> str:
        """Take the next hypothesis about all of the audio; return the agreed beginning."""
        words = hypothesis.split()
        pairs = zip(self._before, words[:-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: _same(*pair), pairs))
        self._before = words
        num_agreed = len(self._words)
        if common > num_agreed and all(map(_same, self._words, words)):
            self._words += words[num_agreed:common]
            self.agreed = " ".join(self._words)
        return self.agreed


def _same(one: str, other: str) -> bool:
    return (words_of(one) or (one,)) == (words_of(other) or (other,))
