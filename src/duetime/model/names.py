"""Checks of names: namespaces, queues, job ids, attributes, alert channels, mail addresses and hosts.

They are pure functions, called once at the door; the code behind the door relies on valid names. Each `check_*`
returns a valid name or raises the error that says what is wrong with it.
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
    """Check the name of a channel, which stands for an alert address; topics use the name in place of the address."""
    return _check_name(name, "channel")


def is_channel(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_mail_in(address: str, domains: Collection[str]) -> bool:
    """Whether the mail address is in one of these domains, which are in lower case; subdomains are others."""
    return address.rpartition("@")[2].lower() in domains


def is_mail(address: str) -> bool:
    """Whether this is a plain mail address, without characters that have a meaning in a URL or a mail's header."""
    return _MAIL.fullmatch(address) is not None


def is_host(text: str) -> bool:
    """Whether this is an IP address in its usual form or a host name. Resolvers also accept `127.1`, `0x7f.1` and
    `2130706433` as addresses, which a check of addresses would not recognize; so a name must not end in a number.
    """
    try:
        ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return _HOST.fullmatch(text) is not None and _NUMBER.fullmatch(text.rstrip(".").rpartition(".")[2]) is None
    return True


def _check_name(name: str, what: str) -> str:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidName(f"the {what} name is text: {name!r}", what=what)
    if _NAME.fullmatch(name):
        return name
    if not name:
        raise InvalidName(f"the {what} name is empty", what=what)
    if len(name) > MAX_NAME:
        raise InvalidName(f"the {what} name is longer than {MAX_NAME} characters", what=what)
    raise InvalidName(f"the {what} name may hold ASCII letters, digits, '-', '_' and '.': {name!r}", what=what)


def check_id(job_id: str) -> str:
    if not 1 <= len(job_id) <= MAX_ID:
        raise InvalidId(f"a job id is 1 to {MAX_ID} characters long, not {len(job_id)}")
    if not job_id.isprintable():
        raise InvalidId(f"a job id is made of printable characters: {job_id!r}")
    return job_id


FOLLOWS = "~>"


def placing_part(job_id: str) -> str:
    """The part of an id, before the first `~>`, that decides on which member of a group of stores the job lives."""
    return job_id.partition(FOLLOWS)[0] or job_id


def check_attributes(attributes: Mapping[str, str]) -> Mapping[str, str]:
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidRequest(f"a job has at most {MAX_ATTRIBUTES} attributes, not {len(attributes)}")
    for key, value in attributes.items():
        if not 1 <= len(key) <= MAX_ATTRIBUTE_KEY or not key.isprintable():
            raise InvalidRequest(
                f"an attribute's name is 1 to {MAX_ATTRIBUTE_KEY} printable characters: {key[:MAX_ATTRIBUTE_KEY]!r}"
            )
        if len(value) > MAX_ATTRIBUTE_VALUE or "\0" in value:
            raise InvalidRequest(f"the attribute {key!r} is longer than {MAX_ATTRIBUTE_VALUE} characters or holds NUL")
    return attributes
