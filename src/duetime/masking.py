"""Passwords and secrets are masked before a text with a URL in it is shown or logged."""

import re

MASK = "***"

_PASSWORD = re.compile(r"(://[^:/@\s]*):[^\s]*@")
_SECRET_OPTION = re.compile(r"([?&][^=&\s]*(?:password|passwd|secret|token)[^=&\s]*=)[^&#\s'\"]*", re.IGNORECASE)


def mask(text: str) -> str:
    """The text with the passwords and secret options of its URLs masked."""
    return _SECRET_OPTION.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))
