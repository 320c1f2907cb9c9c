"""The console's texts in each language: one catalogue file per language, with the same keys in all."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
DEFAULT = "en"


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


def translate(language: str, section: str, text: str) -> str:
    """An English text from elsewhere: those parts that the section of the catalogue has, longer ones first."""
    found = {key: value for key, value in catalogue(DEFAULT).items() if key.startswith(f"{section}.")}
    for key, english in sorted(found.items(), key=lambda one: -len(one[1])):
        text = text.replace(english, catalogue(language)[key])
    return text
