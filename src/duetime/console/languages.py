"""The console's texts in each language: one catalogue file per language, with the same keys in all."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
DEFAULT = "en"
LONGEST_ERROR = 600
_PLACE = re.compile(r"\\\{(\w+)\\\}")


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Texts by key, `section.name`."""
    text = files("duetime.console").joinpath("catalogues", f"{language}.toml").read_text(encoding="utf-8")
    sections: dict[str, dict[str, str]] = tomllib.loads(text)
    return {f"{section}.{name}": value for section, names in sections.items() for name, value in names.items()}


def choose(cookie: str, accepted: str, default: str = DEFAULT) -> str:
    """The language that the visitor picked, else the first one that the browser accepts and the console has."""
    if cookie in LANGUAGES:
        return cookie
    for part in accepted.split(","):
        code = part.partition(";")[0].strip().lower().partition("-")[0]
        if code in LANGUAGES:
            return code
    return default


def say(language: str, key: str, **values: object) -> str:
    """A text with its places filled in. A text of the form `one | many` says how it is for a `count` of 1, and else."""
    text = catalogue(language)[key]
    if "count" in values and " | " in text:
        text = text.split(" | ")[str(values["count"]) != "1"]
    return text.format(**values) if values else text


def has_text(language: str, key: str) -> bool:
    return key in catalogue(language)


@cache
def _errors(language: str) -> list[tuple[re.Pattern[str], str]]:
    file = files("duetime.console").joinpath("catalogues", f"errors_{language}.toml")
    texts: dict[str, str] = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    place = r"(?P<\1>.{0,300}?)"
    return [
        (re.compile(_PLACE.sub(place, re.escape(english)), re.DOTALL), translation)
        for english, translation in texts.items()
    ]


def explain(language: str, message: str) -> str:
    """The message of an error in the visitor's language, if its table has it."""
    for pattern, translation in _errors(language) if len(message) <= LONGEST_ERROR else ():
        if found := pattern.fullmatch(message):
            return translation.format(**found.groupdict())
    return message


def translate(language: str, section: str, text: str) -> str:
    """An English text from elsewhere: those parts that the section of the catalogue has, longer ones first."""
    found = {key: value for key, value in catalogue(DEFAULT).items() if key.startswith(f"{section}.")}
    for key, english in sorted(found.items(), key=lambda one: -len(one[1])):
        text = text.replace(english, catalogue(language)[key])
    return text
