"""Which members of a group drain because somebody decided so while the servers run: a record of the group's registry.

Every process of the deployment follows the record within a second or so. A member that the settings drain as well
drains whatever the record says.
"""

import msgspec

from duetime.model.errors import VersionConflict
from duetime.stores.registry import Record, Registry

KIND = "group-drain"


def read_drain(record: Record | None) -> frozenset[str]:
    """The members that drain by the record."""
    return frozenset(msgspec.json.decode(record.value, type=list[str])) if record else frozenset()


async def set_drain(registry: Registry, group: str, member: str, *, drains: bool) -> None:
    """Let a member take no new jobs, or take them again."""
    while True:
        record = await registry.get(KIND, group)
        members = read_drain(record) | {member} if drains else read_drain(record) - {member}
        value = msgspec.json.encode(sorted(members))
        try:
            await registry.put(KIND, group, value, if_version=record.version if record else 0)
        except VersionConflict:
            continue
        return
