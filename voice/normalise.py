"""From written text to text that can be read aloud."""

from __future__ import annotations

import re
import unicodedata

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_LINE_MARK = re.compile(r"^\s*(?:#{1,6}\s+|>\s+|[-*+•]\s+|[-*_]{3,}\s*$)", re.MULTILINE)
_FENCE = re.compile(r"```\w*")
# Marks of emphasis stand at the edge of a word; an asterisk elsewhere is a multiplication sign.
_EMPHASIS = re.compile(r"\*\*|__|~~|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")
_TITLES = {
    "Dr.": "Doctor",
    "Mr.": "Mister",
    "Mrs.": "Missus",
    "Ms.": "Miz",
    "Prof.": "Professor",
    "vs.": "versus",
    "e.g.": "for example",
    "i.e.": "that is",
}
_TITLE = re.compile(r"(?<![\w.])(?:" + "|".join(map(re.escape, _TITLES)) + r")(?=\s)")
_CURRENCIES = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny")}
# "$3 million" is left alone: the unit would have to follow the word.
_MONEY = re.compile(
    r"([$€£])(\d+(?:,\d{3})*)(?:\.(\d\d))?(?![.,]?\d)(?!\s*(?:hundred|thousand|\w+illion)\b)"
)
_FULL_HOUR = re.compile(r"\b(\d{1,2}):00(?!:|\d)(\s*[ap]\.?m\b)?", re.IGNORECASE)


def speakable(text: str) -> str:
    """Rewrite a clause for the voice: no Markdown, no emoji; money, full hours and titles in words.

    Returns "" where nothing is left to say, for example of a lone emoji.
    """
    text = _LINK.sub(r"\1", text)
    text = _FENCE.sub(" ", text).replace("`", "")
    text = _EMPHASIS.sub("", _LINE_MARK.sub("", text)).replace("_", " ")
    text = _MONEY.sub(_money_in_words, text)
    text = _FULL_HOUR.sub(lambda hour: hour[1] + (hour[2] or " o'clock"), text)
    text = _TITLE.sub(lambda title: _TITLES[title[0]], text)
    text = " ".join("".join(" " if _is_picture(c) else c for c in text).split())
    return text if any(c.isalnum() for c in text) else ""


def _money_in_words(money: re.Match[str]) -> str:
    unit, part = _CURRENCIES[money[1]]
    whole = f"{money[2]} {unit}{'' if money[2] == '1' else 's'}"
    number = int(money[3] or 0)
    plural = "pence" if part == "penny" else part + "s"
    rest = f"{number} {part if number == 1 else plural}"
    if number == 0:
        return whole
    return rest if money[2] == "0" else f"{whole} and {rest}"


def _is_picture(character: str) -> bool:
    """Emoji and the invisible characters that join them; the degree sign is read out."""
    if character in "°\t\n\r":
        return False
    return unicodedata.category(character) in {"So", "Sk", "Cf", "Cc", "Cn", "Co", "Cs"} or (
        character in "\ufe0e\ufe0f|"
    )
