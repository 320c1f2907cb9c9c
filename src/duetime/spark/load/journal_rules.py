"""The rules of a pool with a journal for pushes that go straight into its store, without an engine.

Runs on the driver, before anything is pushed.
"""

from dataclasses import replace

from duetime.client.store_link import opened_store
from duetime.journal.options import embedded_options
from duetime.journal.registration import begin_journaling, find_journaling, refusal_without_journal, registered
from duetime.model.errors import InvalidSettings
from duetime.spark.load.options import LoadOptions


async def with_journal(options: LoadOptions) -> LoadOptions:
    """The options with the folder for the batch's entries, which is found as an embedded engine finds it.

    There is none if the pool does not journal and nobody asked for it. Raises InvalidSettings if the pool journals and
    the journal is "off".
    """
    if options.is_http:
        return options
    async with opened_store(options.store_url) as store:
        found = await find_journaling(store)
        if not found and not options.journal:
            return options
        journal = embedded_options(options.url, options.journal, nodes=await registered(store))
        if journal is None:
            if found:
                raise refusal_without_journal(found)
            return options
        pool = found.pool if found else options.pool
        await begin_journaling(store, pool)
    return replace(options, journal=str(journal.folder.absolute()), pool=pool)


async def refuse_journaled(options: LoadOptions) -> None:
    """Raise InvalidSettings if the pool has a journal, in which pushes without an engine would be missing."""
    if options.is_http:
        return
    async with opened_store(options.store_url) as store:
        found = await find_journaling(store)
    if found:
        raise InvalidSettings(
            f"the pool {found.pool!r} journals, and .save() writes no journal: write to its server (an http:// url), "
            "or use duetime.spark.schedule with journal="
        )
