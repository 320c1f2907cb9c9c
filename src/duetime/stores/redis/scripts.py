"""The Lua scripts: loads them, runs them by their hash, and translates Redis's errors.

A script that works on a queue names the modules that it needs in its header (`-- Modules: keys queue`). The loader puts
their texts from lua/modules in front of it. Scripts are sent in full only where Redis does not know them (after a
restart, a failover or SCRIPT FLUSH).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from duetime.model.clock import Clock
from duetime.model.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.stores.redis.keys import companion
from duetime.stores.redis.link import Fate, Link
from duetime.stores.redis.pipe import Argument, first_word, pack_arguments

log = logging.getLogger("duetime.stores")

_MODULES = "\n-- Modules: "

Run = tuple[Sequence[str], Sequence[Argument]]
"""The prefixes (KEYS but the last) and the arguments of one run of a script."""


@cache
def sources() -> Mapping[str, str]:
    """The text of each script by name, as it is sent to Redis."""
    folder = files("duetime.stores.redis") / "lua"

    def with_modules(text: str) -> str:
        modules = text.partition(_MODULES)[2].partition("\n")[0].split()
        return "\n".join([*((folder / "modules" / f"{module}.lua").read_text() for module in modules), text])

    return {
        entry.name.removesuffix(".lua"): with_modules(entry.read_text())
        for entry in folder.iterdir()
        if entry.name.endswith(".lua")
    }


@cache
def hashes() -> Mapping[str, str]:
    """The name by which Redis knows each script."""
    return {name: sha1(text.encode(), usedforsecurity=False).hexdigest() for name, text in sources().items()}


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
        return await self.run_packed(name, prefix, pack_arguments(arguments), len(arguments), again=again)

    async def run_packed(self, name: str, prefix: str, packed: bytes, count: int, *, again: bool) -> Any:
        """As `run`; `packed` is what `pack_arguments` makes of `count` arguments."""
        sent, fate = self._sent[name], Fate()
        keys = pack_arguments((2, prefix, companion(prefix)))

        async def send(verb: str, script: str) -> Any:
            command = b"*%d%b%b%b\r\n" % (5 + count, pack_arguments((verb, script)), keys, packed)
            return await self._link.call_packed(prefix, command, again=again, fate=fate)

        answer = await send("EVALSHA", self._hashes[name])
        while isinstance(answer, NoScriptError):
            # Of thousands of callers, only one must send the script. In a Cluster, another caller may have sent it
            # to another node; then the answer is NOSCRIPT again.
            async with self._sending:
                is_first = self._sent[name] == sent
                if is_first:
                    answer = await send("EVAL", self._sources[name])
                    self._sent[name] += 1
                sent = self._sent[name]
            if not is_first:
                answer = await send("EVALSHA", self._hashes[name])
        if not isinstance(answer, ResponseError):
            return answer
        if fate.is_lost:  # this attempt has done nothing, but an earlier one whose answer was lost may have
            raise StoreUnavailable(f"an answer of Redis was lost, then: {translate(answer).message}", unknown=True)
        raise translate(answer)

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


def read_time(answer: Sequence[bytes], clock: Clock | None) -> int:
    """The store's time from the answer to TIME, unless a clock replaces it."""
    return clock.now_ms() if clock else int(answer[0]) * 1000 + int(answer[1]) // 1000


def translate(error: ResponseError) -> DuetimeError:
    """The contract's error for an error of Redis. Damage is logged here, because callers only pass it on."""
    word = first_word(error)
    if isinstance(error, OutOfMemoryError) or word == "OOM":
        return StoreFull()
    if word == "WRONGTYPE":
        found = StoreDamaged(f"Redis holds something that Duetime did not write: {error}")
    elif not word and type(error) is ResponseError and "user_script" in str(error):
        found = StoreDamaged(f"a script failed, which means that its data is not what it wrote: {error}")
    else:
        return StoreUnavailable(f"Redis refuses: {error}", unknown=False)
    log.error("store_damaged", extra={"error": found.message})
    return found
