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


@cache
def sentences() -> Mapping[str, str]:
    """Translations by the English sentence; both have the same {places}."""
    return tomllib.loads(files("duetime.alerts").joinpath("chinese.toml").read_text(encoding="utf-8"))


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    patterns: list[tuple[re.Pattern[str], str]] = []
    for english, chinese in sentences().items():
        end = "" if english.endswith((" ", ".", ")")) else r"(?=\W|$)"
        patterns.append((re.compile(_PLACE.sub(r"(?P<\1>[^\\n]+?)", re.escape(english)) + end), chinese))
    return patterns


def in_chinese(text: str) -> str:
    """The text with every sentence translated that the table has."""
    for pattern, chinese in _patterns():
        text = pattern.sub(lambda found, chinese=chinese: chinese.format(**found.groupdict()), text)
    return text
