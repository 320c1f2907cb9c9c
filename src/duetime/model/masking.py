"""Masks passwords and secrets in texts with URLs before they are shown or logged.

Anybody may send such a text, so every function runs in linear time.
"""

import re
from urllib.parse import unquote_plus

MASK = "***"

_WORD = re.compile(r"\S+")
_USER = re.compile(r"://[^:/@]*:")
_OPTION = re.compile(r"((?:[?&]|%3f|%26)(?:(?!%3f|%26|%3d)[^?&=])*)((?:=|%3d)(?:(?!%3f|%26)[^&#'\"])*)?", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|api[_-]?key|access[_-]?key|signature|(?<![a-z])sig(?![a-z])", re.IGNORECASE
)
_SERVICE = re.compile(
    r"(?<![a-z0-9+])"
    r"(?!(?:https?|wss?|tcp|unix|file|s3[an]?|gs|hdfs|abfss?|wasbs?|spark|sqlite|memory|group|tiered|rediss?(?:\+[a-z]+)?"
    r"|postgres(?:ql)?|mysql|mariadb|mailtos?|jsons?|forms?|xmls?)://)"
    r"([a-z][a-z0-9+]*://)[^'\"]+",
    re.IGNORECASE,
)
"""A URL of any other scheme: URLs of alert services (slack, tgram, discord ...) consist of secrets."""


def mask(text: str) -> str:
    """Masks the passwords, secret options and alert service tokens of all URLs in the text."""
    return _WORD.sub(lambda found: _mask_word(found[0]), text) if "?" in text or "&" in text or "://" in text else text


def mask_address(address: str) -> str:
    """Masks an alert address that is a URL: all but its scheme and the host of a web or mail server may be a secret, as
    in https://hooks.slack.com/services/T0/B0/SECRET.
    """
    scheme, found, rest = mask(address).partition("://")
    if not found or rest == MASK:
        return scheme + found + rest
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{host}" + ("" if host == rest else f"/{MASK}")


def is_secret(name: str) -> bool:
    """Returns whether an option of this name, possibly percent-encoded, holds a secret."""
    return _SECRET_NAME.search(unquote_plus(name)) is not None


def _mask_word(word: str) -> str:
    user, at = _USER.search(word), word.rfind("@")
    if user and at >= user.end():
        word = f"{word[: user.end()]}{MASK}{word[at:]}"
    return _OPTION.sub(_mask_option, _SERVICE.sub(rf"\1{MASK}", word))


def _mask_option(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    if not value or not is_secret(name):
        return found[0]
    return name + value[: 1 if value[0] == "=" else 3] + MASK
