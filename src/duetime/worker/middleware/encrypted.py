"""Arguments that only producers and workers can read: not the store, the server, the console or a backup.

They are encrypted and authenticated by Fernet (the package `cryptography`, `pip install duetime[encrypted]`). Only the
arguments are; the name of the task, its queue, times and headers are not, and an error's text is the task's own affair.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec
from msgspec import Struct

from duetime.errors import InvalidRequest, InvalidSettings
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware_chain import Middleware, PendingJob
from duetime.worker.task_exceptions import Fail


class SealedArguments(Struct, rename={"token": "$encrypted"}, forbid_unknown_fields=True):
    """What stands in the place of the arguments; no parameter of a function can have this name."""

    token: str


class Encrypted:
    def __init__(self, keys: Sequence[str | bytes]) -> None:
        try:
            fernet: Any = import_module("cryptography.fernet")
        except ImportError as error:
            raise InvalidSettings(
                "encrypted arguments need the extra `encrypted`: pip install duetime[encrypted]"
            ) from error
        if not keys:
            raise InvalidRequest("encrypted arguments need a key: cryptography.fernet.Fernet.generate_key()")
        self._fernet: Any = fernet.MultiFernet([fernet.Fernet(key) for key in keys])
        self._refusal: type[Exception] = fernet.InvalidToken

    def pushing(self, job: PendingJob) -> None:
        job.sealed = msgspec.json.encode(SealedArguments(self._fernet.encrypt(job.data).decode()))

    def opening(self, job: CurrentJob) -> None:
        try:
            sealed = msgspec.json.decode(job.data, type=SealedArguments)
            job.data = self._fernet.decrypt(sealed.token)
        except msgspec.MsgspecError:
            raise Fail("the arguments are not encrypted, and this task takes no others") from None
        except self._refusal:
            raise Fail("the arguments cannot be decrypted: none of the keys fits, or somebody changed them") from None

    def __call__(self, job: CurrentJob, call: Callable[[], Any]) -> Any:
        return call()


def encrypted(*keys: str | bytes) -> Middleware:
    """The first key encrypts, each of them decrypts: to change keys, put the new one first. A job whose arguments were
    not encrypted by one of the keys fails at once, and its task does not run.
    """
    return Encrypted(keys)
