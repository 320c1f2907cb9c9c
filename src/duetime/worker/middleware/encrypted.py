"""Arguments that only producers and workers can read: not the store, the server, the console or a backup.

They are encrypted and authenticated by Fernet (the package `cryptography`, `pip install duetime[encrypted]`), together
with the namespace, the queue, the task and the id of their job: in another one they do not run. Only the arguments are
encrypted; the name of the task, its queue, times and headers are not, and an error's text is the task's own affair.
Ids and keys that are made of arguments are keyed hashes.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec
from msgspec import Raw, Struct

from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.names import Queue
from duetime.worker.current_job import CurrentJob
from duetime.worker.middleware_chain import Middleware, PendingJob
from duetime.worker.task_exceptions import Fail


class SealedArguments(Struct, rename={"token": "$encrypted"}, forbid_unknown_fields=True):
    """What stands in the place of the arguments; no parameter of a function can have this name."""

    token: str


class BoundArguments(Struct, frozen=True, array_like=True):
    """What is encrypted: the arguments, and the job that they belong to. Fernet has no associated data, so the job is
    part of the authenticated text.
    """

    namespace: str
    queue: str
    task: str
    id: str
    arguments: Raw

    @property
    def job(self) -> tuple[str, str, str, str]:
        return self.namespace, self.queue, self.task, self.id


class Encrypted:
    """`hash_key` is derived from the first key."""

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
        first = base64.urlsafe_b64decode(keys[0])
        self.hash_key = hashlib.blake2b(key=first, digest_size=32, person=b"duetime hash key").digest()

    def pushing(self, job: PendingJob) -> None:
        def seal(queue: Queue, job_id: str) -> bytes:
            bound = BoundArguments(queue.namespace, queue.name, job.name, job_id, Raw(job.data))
            return msgspec.json.encode(SealedArguments(self._fernet.encrypt(msgspec.json.encode(bound)).decode()))

        job.seal = seal

    def opening(self, job: CurrentJob) -> None:
        try:
            sealed = msgspec.json.decode(job.data, type=SealedArguments)
        except msgspec.MsgspecError:
            raise Fail("the arguments are not encrypted, and this task takes no others") from None
        try:
            bound = msgspec.json.decode(self._fernet.decrypt(sealed.token), type=BoundArguments)
        except (self._refusal, msgspec.MsgspecError):
            raise Fail("the arguments cannot be decrypted: none of the keys fits, or somebody changed them") from None
        if bound.job != (job.info.namespace, job.info.queue, job.name, job.info.id):
            raise Fail(
                "the arguments were encrypted for another job: "
                f"task {bound.task!r} in {bound.namespace}/{bound.queue}, id {bound.id!r}"
            )
        job.data = bytes(bound.arguments)

    def __call__(self, job: CurrentJob, call: Callable[[], Any]) -> Any:
        return call()


def encrypted(*keys: str | bytes) -> Middleware:
    """The first key encrypts and keys the hashes that ids are made of, each of them decrypts: to change keys, put the
    new one first. A job whose arguments were not encrypted by one of the keys, or for another job, fails at once, and
    its task does not run.
    """
    return Encrypted(keys)
