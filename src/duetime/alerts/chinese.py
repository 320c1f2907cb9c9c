"""Alerts in Chinese, for `language = "zh"`.

Alerts are written, logged and recorded in English; `in_chinese` translates what is sent, by the table chinese.toml.
What that does not have, such as the reason that a store or a receiver gave, stays as it is.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_PLACE = re.compile(r"\\\{(\w+)\\\}")
_WORD, _SPACED = r"\S{1,600}?", r"[^\n]{1,200}?"


@cache
def sentences() -> Mapping[str, str]:
    """Translations by the English sentence; both have the same {places}."""
    return tomllib.loads(files("duetime.alerts").joinpath("chinese.toml").read_text(encoding="utf-8"))


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    patterns: list[tuple[re.Pattern[str], str]] = []
    for english, chinese in sentences().items():
        end = "" if english.endswith((" ", ".", ")")) else r"(?=\W|$)"
        begin = r"(?<!\S)" if english.startswith("{") else ""
        patterns.append((re.compile(begin + _PLACE.sub(_value, re.escape(english)) + end), chinese))
    return patterns


def _value(place: re.Match[str]) -> str:
    """Short and mostly without spaces, so that the time is linear in a text that holds the body of a job."""
    return rf"(?P<{place[1]}>{_SPACED if place[1] in ('topic', 'time') else _WORD})"


def in_chinese(text: str) -> str:
    """The text with every sentence translated that the table has."""
    for pattern, chinese in _patterns():
        text = pattern.sub(lambda found, chinese=chinese: chinese.format(**found.groupdict()), text)
    return text
