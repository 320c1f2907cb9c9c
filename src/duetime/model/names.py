"""Checks of names: namespaces, queues, job ids, attributes, alert channels, mail addresses and hosts.

Pure functions. Protocols and clients call them once per request; the engine and the stores rely on valid names. Each
`check_*` returns its argument or raises an error that says what is wrong with it.
"""

import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from duetime.model.errors import InvalidId, InvalidName, InvalidRequest

DEFAULT_POOL = "default"
"""The pool that is used where none is named."""
DEFAULT_NAMESPACE = "default"
MAX_NAME = 255
MAX_ID = 128
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTE_KEY = 128
MAX_ATTRIBUTE_VALUE = 4096

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}", re.ASCII)
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII | re.IGNORECASE)
_MAIL = re.compile(r"[^\s@/:?&%,;<>()\[\]\"\\]+@[^\s@/:?&%,;<>()\[\]\"\\]+")


class Queue(NamedTuple):
    """A queue's full name: unique in a store, comparable, usable as a key."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Queue":
        """The inverse of str(); neither part can hold a slash."""
        namespace, _, name = text.partition("/")
        return cls(namespace, name)


def check_namespace(name: str) -> str:
    return _check_name(name, "namespace")


def check_queue(namespace: str, name: str) -> Queue:
    return Queue(_check_name(namespace, "namespace"), _check_name(name, "queue"))


def check_channel(name: str) -> str:
    """A channel is a name for an alert address that topics can use."""
    return _check_name(name, "channel")


def is_channel(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_mail_in(address: str, domains: Collection[str]) -> bool:
    """Returns whether the mail address is in one of these lower-case domains. Subdomains do not count."""
    return address.rpartition("@")[2].lower() in domains


def is_mail(address: str) -> bool:
    """Returns whether this is a mail address without characters that are special in a URL or a mail header."""
    return _MAIL.fullmatch(address) is not None


def is_host(text: str) -> bool:
    """Returns whether this is an IP address in its usual form or a host name. A name must not end in a number, because
    resolvers read `127.1`, `0x7f.1` and `2130706433` as addresses, which our address checks would miss.
    """
    try:
        ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return _HOST.fullmatch(text) is not None and _NUMBER.fullmatch(text.rstrip(".").rpartition(".")[2]) is None
    return True


def _check_name(name: str, what: str) -> str:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidName(f"{what} name must be text, got {name!r}", what=what)
    if _NAME.fullmatch(name):
        return name
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"{what} name must have 1 to {MAX_NAME} characters, got {len(name)}", what=what)
    raise InvalidName(f"{what} name must contain only ASCII letters, digits, '-', '_' and '.', got {name!r}", what=what)


def check_id(job_id: str, what: str = "job id") -> str:
    if not isinstance(job_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidId(f"{what} must be text, got {job_id!r}")
    if not 1 <= len(job_id) <= MAX_ID:
        raise InvalidId(f"{what} must have 1 to {MAX_ID} characters, got {len(job_id)}")
    if not job_id.isprintable():
        raise InvalidId(f"{what} must contain only printable characters, got {job_id!r}")
    return job_id


FOLLOWS = "~>"


def placing_part(job_id: str) -> str:
    """The part of an id, before the first `~>`, that decides on which member of a group of stores the job lives."""
    return job_id.partition(FOLLOWS)[0] or job_id


def check_attributes(attributes: Mapping[str, str]) -> Mapping[str, str]:
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidRequest(f"job must have at most {MAX_ATTRIBUTES} attributes, got {len(attributes)}")
    for key, value in attributes.items():
        if not 1 <= len(key) <= MAX_ATTRIBUTE_KEY or not key.isprintable():
            given = key[:MAX_ATTRIBUTE_KEY]
            raise InvalidRequest(
                f"attribute name must have 1 to {MAX_ATTRIBUTE_KEY} printable characters, got {given!r}"
            )
        if len(value) > MAX_ATTRIBUTE_VALUE or "\0" in value:
            raise InvalidRequest(f"attribute {key!r} must have at most {MAX_ATTRIBUTE_VALUE} characters and no NUL")
    return attributes
