"""DuckDB on the same files: the same rows of jobs, the same law, the same findings. Runs in `.venv-bench`.

python duckdb_peer.py LAKE OUT            lifecycle and audit, timed; prints one JSON document
python duckdb_peer.py --sum FOLDER ...    a checksum of the jobs in each folder, by the same tool for both engines
"""

import json
import resource
import sys
import time
from pathlib import Path

import duckdb

KEY = "pool, namespace, queue, id, born"
STORE_KEY = "namespace, queue, id, born"

# Column for column what lifecycle.py makes; the order of two events of a job is attempt * 2^43 + ts there, too.
JOBS = """
create view steps as
select pool, namespace, queue, id, born, event, ts, attempt, due_at, priority, ttl, tries, reason, batch,
       attempt::bigint * 8796093022208 + ts as ord
from events where event not in ('heartbeat', 'closed', 'purged') and id != ''
union all
select pool, namespace, queue, id, was, if(event = 'replaced', 'was replaced', 'was expired'), ts,
       0, 0, 0, 0, 0, '', '', 0
from events where was > 0;

create view states as
select pool, namespace, queue, id, born,
    min(ts) filter (event in ('accepted', 'adopted', 'replaced')) as accepted_at,
    max((event = 'adopted')::int) as adopted,
    max(priority) filter (event in ('accepted', 'adopted', 'replaced')) as priority,
    max(batch) as batch,
    arg_max(due_at, ts) filter (attempt = 0 and due_at > 0 and event in
        ('accepted', 'adopted', 'replaced', 'rescheduled', 'respawned', 'released', 'lease_expired', 'given_back'))
        as first_due_at,
    arg_max(due_at, ord) filter (due_at > 0 and event in
        ('accepted', 'adopted', 'replaced', 'rescheduled', 'respawned', 'released', 'lease_expired', 'given_back'))
        as due_at,
    arg_max(if(event != 'dead' and ttl > 0, ts + ttl, 0), ord) filter (event in
        ('accepted', 'adopted', 'replaced', 'respawned', 'dead')) as expires_at,
    min(ts) filter (event = 'delivered') as first_delivered_at,
    max(ts) filter (event = 'delivered') as last_delivered_at,
    min(ts) filter (event = 'acked') as acked_at,
    min(ts) filter (event in ('acked', 'cancelled', 'deleted', 'expired', 'was replaced', 'was expired')) as ended_at,
    count(*) filter (event = 'delivered')::int as attempts,
    max(attempt) as attempt,
    count(*)::int as history,
    max(ts) as last_at,
    count(*) filter (event in ('accepted', 'replaced') and attempt = 0)::int as accepts,
    count(*) filter (event = 'acked' and reason != 'unfenced')::int as acks,
    bit_or(case event when 'acked' then 1 when 'cancelled' then 2 when 'deleted' then 4 when 'expired' then 8
        when 'was expired' then 8 when 'was replaced' then 16 else 0 end) as ends,
    max(attempt) filter (event in ('acked', 'cancelled', 'deleted')) as end_attempt,
    max(ord) filter (event = 'dead') as dead_order,
    max(ord) filter (event in ('accepted', 'adopted', 'replaced', 'respawned')) as revived_order,
    count(*) filter (event = 'given_back')::int as given_backs,
    max(attempt) filter (event in ('accepted', 'adopted', 'replaced', 'respawned')) as reset_attempt,
    max(case when event in ('accepted', 'adopted', 'replaced') then attempt * 16 + 1
             when event = 'delivered' then attempt * 16 + 2
             when event in ('released', 'lease_expired', 'given_back') then attempt * 16 + 3
             when event in ('respawned', 'rescheduled') then attempt * 16 + 4 end) as place,
    max(attempt::bigint * 131072 + tries) filter (event in ('accepted', 'adopted', 'replaced')
        or event = 'respawned' and tries > 0) as tries_rank,
    arg_max(reason, ord) filter (event in ('dead', 'cancelled')) as reason,
    bit_or(1::bigint << (attempt % 63)) filter (event = 'delivered') as delivered_bits,
    max(due_at - ts) filter (event = 'delivered' and due_at > 0) as early_ms
from steps group by pool, namespace, queue, id, born;

copy (
    select pool, namespace, queue, id, born,
        case when accepted_at is null then ''
             when ends & 1 != 0 then 'acked' when ends & 2 != 0 then 'cancelled' when ends & 4 != 0 then 'deleted'
             when ends & 8 != 0 then 'expired' when ends & 16 != 0 then 'replaced'
             when dead_order > coalesce(revived_order, 0) then 'dead'
             when place % 16 = 2 then 'leased' else 'waiting' end as outcome,
        coalesce(reason, '') as reason, batch, priority, accepted_at, adopted, due_at, first_due_at,
        coalesce(expires_at, 0) as expires_at, first_delivered_at, last_delivered_at, acked_at, ended_at,
        attempts, attempt, greatest(attempt - coalesce(reset_attempt, 0) - given_backs, 0) as used,
        (coalesce(tries_rank, 0) % 131072)::int as tries, first_delivered_at - first_due_at as lateness_ms,
        acked_at - last_delivered_at as run_ms, history, last_at, accepts, acks, ends, end_attempt,
        delivered_bits, early_ms
    from states
) to '{out}/jobs.parquet' (format parquet, compression zstd);
"""

AUDIT = """
create view jobs as from '{out}/jobs.parquet';
create view living as
select jobs.*, state,
    case when state is not null then if(state in ('leased', 'dead'), state, 'waiting')
         when last_at < {began_at} then 'lost' else outcome end as found
from jobs left join scan using (namespace, queue, id, born) where ends = 0 and accepted_at is not null;

copy (
    select pool, namespace, queue, batch, count(*) filter (adopted = 0 or accepts > 0) as accepted,
        count(*) filter (adopted = 1 and accepts = 0) as adopted,
        {counts}
    from (select pool, namespace, queue, batch, adopted, accepts, found as place from living
          union all select pool, namespace, queue, batch, adopted, accepts, outcome from jobs
          where ends != 0 and accepted_at is not null)
    group by all
) to '{out}/law.parquet' (format parquet);

copy (
    select 'lost' as kind, {key}, batch from living where found = 'lost'
    union all select 'acked_twice', {key}, batch from jobs where acks > 1
    union all select 'early', {key}, batch from jobs where coalesce(early_ms, first_due_at - first_delivered_at) > 0
    union all select 'duplicated', {key}, batch from jobs where accepts > 1
    union all select 'duplicated', {key}, batch from jobs
        where if(attempt < 63, attempts > bit_count(delivered_bits), attempts > attempt)
    union all select 'duplicated', {key}, batch from jobs where bit_count(ends) > 1
    union all select 'duplicated', {key}, batch from jobs where attempt > end_attempt
    union all select 'unanswered', {key}, batch from jobs where accepted_at is null
    union all select 'stray', '', {store_key}, '' from (
        select {store_key} from scan anti join jobs using ({store_key}))
    union all select 'duplicated', pool, {store_key}, batch from jobs semi join scan using ({store_key})
        where ends != 0 and ended_at < {began_at}
) to '{out}/findings.parquet' (format parquet);
"""

PLACES = ("waiting", "leased", "dead", "acked", "cancelled", "expired", "replaced", "purged", "deleted", "lost")

SUM = """
select count(*) as rows, sum(hash(pool, namespace, queue, id, born, outcome, reason, batch, priority::int, accepted_at,
    due_at, first_due_at, expires_at, first_delivered_at, last_delivered_at, acked_at, ended_at, attempts::int,
    attempt::int, used::int, tries::int, lateness_ms, run_ms, history::int, last_at, acks::int, ends::int,
    delivered_bits, early_ms)::hugeint) as sum
from read_parquet({files})
"""


def work(lake: str, out: str, began_at: str) -> dict[str, object]:
    database = duckdb.connect()
    database.execute("set threads = 2")
    database.execute(f"create view events as from read_parquet('{lake}/events/current/date=*/*.parquet')")
    database.execute(f"create view scan as from read_parquet('{lake}/scan/*.parquet')")
    started, before = time.perf_counter(), sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    database.execute(JOBS.replace("{out}", out))
    made = time.perf_counter()
    counts = ", ".join(f"count(*) filter (place = '{name}') as {name}" for name in PLACES)
    names = {"out": out, "began_at": began_at, "counts": counts, "key": KEY, "store_key": STORE_KEY}
    database.execute(AUDIT.format(**names))
    ended = time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime - before
    return {"lifecycle_s": made - started, "audit_s": ended - made, "cpu_s": cpu_s, "peak": used.ru_maxrss * 1024}


def sums(folders: list[str]) -> list[list[object]]:
    """Per folder: jobs, law and findings, each as a number of rows and a sum of hashes."""
    law = KEY.replace("id, born", "batch")
    columns = {"law": f"{law}, accepted, adopted, {', '.join(PLACES)}", "findings": f"kind, {KEY}, batch"}
    found: list[list[object]] = []
    for folder in folders:
        queries = [SUM.replace("{files}", files(f"{folder}/jobs.parquet"))]
        for name, hashed in columns.items():
            parts = files(f"{folder}/{name}.parquet")
            queries.append(f"select count(*), sum(hash({hashed})::hugeint) from read_parquet({parts})")
        found.append([str(duckdb.connect().execute(query).fetchone()) for query in queries])
    return found


def files(path: str) -> str:
    """A file, or all of a folder's."""
    where = Path(path)
    return str([str(part) for part in sorted(where.rglob("*.parquet"))] if where.is_dir() else [path])


if __name__ == "__main__":
    if sys.argv[1] == "--sum":
        print(json.dumps(sums(sys.argv[2:])))
    else:
        print(json.dumps(work(*sys.argv[1:4])))
