"""The Lua scripts: loading them, running them by their hash, and turning Redis's errors into ours.

A script that works on a queue begins with those functions of lua/prelude.lua that it needs. Scripts are sent in full
only where Redis does not know them (after a restart, a failover or SCRIPT FLUSH).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from duetime.model.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.stores.redis.keys import companion
from duetime.stores.redis.link import Fate, Link
from duetime.stores.redis.pipe import Argument, first_word, pack

log = logging.getLogger("duetime.stores")

_FUNCTION = re.compile(r"^function q\.(\w+)\((?:[^\n]* end\n|.*?^end\n)", re.MULTILINE | re.DOTALL)
_CALLED = re.compile(r"\bq\.(\w+)")

Run = tuple[Sequence[str], Sequence[Argument]]
"""The prefixes (KEYS but the last) and the arguments of one run of a script."""


@cache
def sources() -> Mapping[str, str]:
    """The text of each script by name, as it is sent to Redis."""
    folder = files("duetime.stores.redis") / "lua"
    texts = {
        entry.name.removesuffix(".lua"): entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".lua")
    }
    prelude = texts.pop("prelude")
    return {
        name: text if name.startswith("registry_") else needed_prelude(prelude, text) + text
        for name, text in texts.items()
    }


@cache
def hashes() -> Mapping[str, str]:
    """The name by which Redis knows each script."""
    return {name: sha1(text.encode()).hexdigest() for name, text in sources().items()}


def needed_prelude(prelude: str, script: str) -> str:
    """The prelude with only the functions that the script can reach, because Redis makes them anew in every run."""
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(prelude)}
    reached: set[str] = set()
    unread = [script]
    while unread:
        called = functions.keys() & set(_CALLED.findall(unread.pop()))
        unread += [functions[name] for name in called - reached]
        reached |= called
    return _FUNCTION.sub(lambda found: found[0] if found[1] in reached else "", prelude)


class Scripts:
    """Runs scripts over a link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sources = sources()
        self._hashes = hashes()
        self._sent = dict.fromkeys(self._sources, 0)
        """How often each script was sent in full."""
        self._sending = asyncio.Lock()

    async def run(self, name: str, prefix: str, *arguments: Argument, again: bool = False) -> Any:
        """Run a script once, on the keys of one prefix. `again` is that of `Link.call`."""
        rest = (2, prefix, companion(prefix), *arguments)
        sent, fate = self._sent[name], Fate()
        packed = pack(("EVALSHA", self._hashes[name], *rest))
        answer = await self._link.call_packed(prefix, packed, again=again, fate=fate)
        if not isinstance(answer, ResponseError):
            return answer

        async def send(verb: str, script: str) -> Any:
            return await self._link.call(prefix, (verb, script, *rest), again=again, fate=fate)

        while isinstance(answer, NoScriptError):
            sent, answer = await self._run_forgotten(name, send, sent)
        if isinstance(answer, ResponseError):
            raise _refused(answer, fate)
        return answer

    async def _run_forgotten(self, name: str, send: Callable[[str, str], Awaitable[Any]], sent: int) -> tuple[int, Any]:
        """Send the script in full, unless another caller just did: thousands at once must not all send it.

        In a Cluster the other caller may have sent it to another node; then the answer is NOSCRIPT again.
        """
        async with self._sending:
            if self._sent[name] == sent:
                answer = await send("EVAL", self._sources[name])
                self._sent[name] += 1
                return self._sent[name], answer
        sent = self._sent[name]
        return sent, await send("EVALSHA", self._hashes[name])

    async def run_packed(self, name: str, prefix: str, rest: bytes, count: int) -> Any:
        """As `run` with `again`; `rest` holds `count` arguments that are encoded in Redis's protocol already."""

        fate = Fate()

        async def send(verb: str, script: str) -> Any:
            head = pack((verb, script, 2, prefix, companion(prefix)))
            numbers = b"*%d" % (5 + count)
            packed = b"".join((numbers, head[head.index(b"\r") :], rest))
            return await self._link.call_packed(prefix, packed, again=True, fate=fate)

        answer = await send("EVALSHA", self._hashes[name])
        if isinstance(answer, NoScriptError):
            answer = await send("EVAL", self._sources[name])
        if isinstance(answer, ResponseError):
            raise _refused(answer, fate)
        return answer

    async def run_many(self, name: str, runs: Sequence[Run], *, again: bool = True) -> list[Any]:
        """Many runs of one script in one round trip per node. Each has its own answer, which may be an error."""
        rests = [(len(prefixes) + 1, *prefixes, companion(prefixes[0]), *arguments) for prefixes, arguments in runs]
        known, text = self._hashes[name], self._sources[name]
        answers = await self._link.many([(rest[1], ("EVALSHA", known, *rest)) for rest in rests], again=again)
        forgotten = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if forgotten:
            commands = [(rests[index][1], ("EVAL", text, *rests[index])) for index in forgotten]
            for index, answer in zip(forgotten, await self._link.many(commands, again=again), strict=True):
                answers[index] = answer
        return [translate(answer) if isinstance(answer, ResponseError) else answer for answer in answers]


def checked(answers: list[Any]) -> list[Any]:
    """The answers, or the first error among them."""
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise translate(answer)
        if isinstance(answer, DuetimeError):
            raise answer
    return answers


def _refused(error: ResponseError, fate: Fate) -> DuetimeError:
    """A refused attempt has done nothing, but an earlier attempt whose answer was lost may have taken effect."""
    refusal = translate(error)
    if fate.is_lost:
        return StoreUnavailable(f"an answer of Redis was lost, then: {refusal.message}", unknown=True)
    return refusal


def translate(error: ResponseError) -> DuetimeError:
    """The contract's error for an error of Redis. Damage is logged here, because callers only pass it on."""
    found = _translate(error)
    if isinstance(found, StoreDamaged):
        log.error("store_damaged", extra={"error": found.message})
    return found


def _translate(error: ResponseError) -> DuetimeError:
    word = first_word(error)
    if isinstance(error, OutOfMemoryError) or word == "OOM":
        return StoreFull()
    if word in {"WRONGTYPE", "DAMAGED"}:
        return StoreDamaged(f"Redis holds something that Duetime did not write: {error}")
    if not word and type(error) is ResponseError and "user_script" in str(error):
        return StoreDamaged(f"a script failed, which means that its data is not what it wrote: {error}")
    return StoreUnavailable(f"Redis refuses: {error}", unknown=False)
