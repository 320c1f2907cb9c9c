"""The Lua scripts: loading them, running them by their hash, and turning Redis's errors into ours.

Every script that works on a queue has lua/prelude.lua in front. Scripts are sent in full only where Redis does not know
them (after a restart, a failover or SCRIPT FLUSH).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from duetime.errors import DuetimeError, StoreDamaged, StoreFull, StoreUnavailable
from duetime.stores.redis.link import Argument, Command, Link

Run = tuple[Sequence[str], Sequence[Argument]]
"""The keys and the arguments of one run of a script."""


@cache
def sources() -> Mapping[str, str]:
    """The text of each script by name, as it is sent to Redis."""
    folder = files("duetime.stores.redis") / "lua"
    texts = {
        entry.name.removesuffix(".lua"): entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".lua")
    }
    prelude = texts.pop("prelude")
    return {name: text if name.startswith("registry_") else prelude + text for name, text in texts.items()}


class Scripts:
    """Runs scripts over a link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sources = sources()
        self._hashes = {name: sha1(text.encode()).hexdigest() for name, text in self._sources.items()}

    async def run(self, name: str, key: str, *arguments: Argument, again: bool = False) -> Any:
        """One run with one key. `again`: as in Link.call."""
        answer = await self._link.call(key, ("EVALSHA", self._hashes[name], 1, key, *arguments), again=again)
        if isinstance(answer, NoScriptError):
            answer = await self._link.call(key, ("EVAL", self._sources[name], 1, key, *arguments), again=again)
        if isinstance(answer, ResponseError):
            raise translate(answer)
        return answer

    async def run_many(self, name: str, runs: Sequence[Run], *, again: bool = True) -> list[Any]:
        """Many runs of one script in one round trip per node. An error of one fails all; they must bear repetition."""
        answers = await self._link.many(
            [(keys[0], self._command(name, keys, args)) for keys, args in runs], again=again
        )
        for index, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                keys, args = runs[index]
                answers[index] = await self._link.call(
                    keys[0], ("EVAL", self._sources[name], len(keys), *keys, *args), again=again
                )
        return checked(answers)

    def _command(self, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Command:
        return ("EVALSHA", self._hashes[name], len(keys), *keys, *arguments)


def checked(answers: list[Any]) -> list[Any]:
    """The answers, or the first error among them as ours."""
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise translate(answer)
    return answers


def translate(error: ResponseError) -> DuetimeError:
    """What Redis says, in our words. Redis 6 wraps an error inside a script in text of its own, so the word is
    searched for.
    """
    text = str(error)
    if "OOM" in text:
        return StoreFull()
    if "WRONGTYPE" in text or "DAMAGED" in text:
        return StoreDamaged(f"Redis holds something that Duetime did not write: {text}")
    if "user_script" in text:
        return StoreDamaged(f"a script failed, which means that its data is not what it wrote: {text}")
    return StoreUnavailable(f"Redis refuses: {text}", unknown=False)
