"""The application: errors without internals, caps, bounded labels; its settings and its wire format."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from duetime.engine.pools import Pools
from duetime.engine.registry_copy import RegistryCopy
from duetime.metrics.scraper import Scraper
from duetime.model.clock import ManualClock
from duetime.model.errors import InvalidSettings, StoreFull
from duetime.model.ids import IdMaker
from duetime.model.job import State
from duetime.model.names import Queue
from duetime.model.settings import load
from duetime.protocols.access_log import mask_query
from duetime.protocols.lmstfy import Defaults, LmstfyAdmin, LmstfyApp, LmstfyParts, make_parts
from duetime.protocols.lmstfy.consumers import remaining_s, remaining_tries
from duetime.protocols.lmstfy.producers import split_array
from duetime.protocols.lmstfy.wire import Refused, elapsed_ms, parse_query, to_json, to_pretty_json, unsigned
from duetime.server.supervision.siblings import Alone
from duetime.stores.base import RulesChange
from duetime.stores.memory.store import MemoryStore
from tests.plugins.serving import read_samples
from tests.protocols.v1.server import listen

QUEUE = Queue("ns", "q")


@pytest.fixture
async def parts() -> AsyncIterator[LmstfyParts]:
    async def open_store(url: str) -> MemoryStore:
        return MemoryStore()

    async with (
        Pools({"default": "memory:"}, open_store=open_store) as pools,
        RegistryCopy(lambda: pools.registry) as registry_copy,
    ):
        settings = load(flags={}, environment={}, file={"dev": True})
        yield make_parts(settings, pools, registry_copy, Scraper(pools, Alone()))


async def ask(parts: LmstfyParts, method: str, path: str, body: bytes = b"") -> httpx.Response:
    async with listen(LmstfyApp(parts)) as at, httpx.AsyncClient(base_url=at.url) as client:
        return await client.request(method, path, content=body)


async def test_messages_of_a_store_stay_inside(parts: LmstfyParts, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = parts.pools.engine("default")

    async def full(*arguments: object, **options: object) -> None:
        raise StoreFull("secret details")

    async def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("secret details")

    for failing, body in ((full, b'{"error":"internal error"}'), (broken, b"")):
        monkeypatch.setattr(engine, "push", failing)
        monkeypatch.setattr(engine, "reserve", failing)
        for method in ("PUT", "GET"):
            answer = await ask(parts, method, "/api/ns/q")
            assert (answer.status_code, answer.content) == (500, body)


async def test_a_queue_with_caps(parts: LmstfyParts) -> None:
    engine = parts.pools.engine("default")
    await engine.store.configure(QUEUE, RulesChange(max_jobs=1, max_body=5))
    too_large = await ask(parts, "PUT", "/api/ns/q", b"123456")
    assert (too_large.status_code, too_large.content) == (413, b'{"error":"body too large"}')
    assert (await ask(parts, "PUT", "/api/ns/q", b"12345")).status_code == 201
    full = await ask(parts, "PUT", "/api/ns/q", b"1")
    assert (full.status_code, full.content) == (429, b'{"msg":"the queue is full"}')


async def test_an_id_that_was_drawn_twice_is_drawn_again(parts: LmstfyParts, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["A" * 26, "A" * 26, "B" * 26])
    monkeypatch.setattr("duetime.protocols.lmstfy.producers.make_id", lambda *_, **__: next(ids))
    answers = [await ask(parts, "PUT", "/api/ns/q", body) for body in (b"first", b"second")]
    assert [answer.status_code for answer in answers] == [201, 201]
    page = await parts.pools.engine("default").store.list_jobs(QUEUE, State.READY)
    assert {job.id: job.body for job in page.jobs} == {"A" * 26: b"first", "B" * 26: b"second"}


async def test_other_protocols_are_left_alone(parts: LmstfyParts) -> None:
    async def fail(*_: object) -> Message:
        raise AssertionError

    for application in (LmstfyApp(parts), LmstfyAdmin(parts)):
        await application({"type": "websocket"}, fail, fail)


@pytest.mark.parametrize(
    ("label", "metric"),
    [("queue", "infra_lmstfy_redis_publish_queue_jobs"), ("namespace", "infra_lmstfy_http_http_codes")],
)
async def test_labels_are_bounded(label: str, metric: str, parts: LmstfyParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.scraper.meters.names, "_limit", 2)
    for name in ("a", "b", "c", "d", "a"):
        await ask(parts, "PUT", f"/api/ns/{name}" if label == "queue" else f"/api/{name}/q", b"x")
    samples = read_samples((await parts.scraper.text()).decode())
    counts = {dict(labels)[label]: value for (name, labels), value in samples.items() if name.startswith(metric)}
    assert counts == {"a": 2, "b": 1, "other": 2}


# --- from settings to the lmstfy listeners


async def open_store(url: str) -> MemoryStore:
    return MemoryStore()


def make(**file: Any) -> Any:
    pools = Pools({"default": "memory:"}, open_store=open_store)
    return make_parts(
        load(flags={}, environment={}, file=file), pools, RegistryCopy(lambda: pools.registry), Scraper(pools, Alone())
    )


async def test_defaults_are_those_of_lmstfy() -> None:
    assert make().defaults == Defaults(delay=0, ttl=86_400, tries=1, ttr=120, timeout=0)
    assert make().settings.max_body == 1_048_576


async def test_settings_reach_the_application() -> None:
    given = {"lmstfy_ttl": "1h", "lmstfy_delay": 5, "lmstfy_tries": 3, "lmstfy_ttr": "1m", "lmstfy_timeout": "2s"}
    assert make(**given).defaults == Defaults(delay=5, ttl=3600, tries=3, ttr=60, timeout=2)
    assert make(access_log=True).access_log.enabled


@pytest.mark.parametrize(
    "given",
    [
        {"lmstfy_tries": 0},
        {"lmstfy_tries": 65_536},
        {"lmstfy_ttl": "1500ms"},
        {"lmstfy_ttl": "1s", "lmstfy_delay": "2s"},
    ],
)
async def test_wrong_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=r"lmstfy_(tries|ttl)"):
        make(**given)


# --- how lmstfy's protocol spells JSON, reads queries and keeps secrets out of logs


def test_keys_are_sorted_and_html_is_escaped() -> None:
    assert to_json({"b": "<a&b>", "a": "\u2028ä"}) == '{"a":"\\u2028ä","b":"\\u003ca\\u0026b\\u003e"}'.encode()
    assert to_pretty_json({"tokens": {"x": "<"}}) == b'{\n    "tokens": {\n        "x": "\\u003c"\n    }\n}'
    assert to_pretty_json({"tokens": {}}) == b'{\n    "tokens": {}\n}'


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"", {}),
        (b"a=1&b=2", {"a": "1", "b": "2"}),
        (b"a=1&a=2", {"a": "1"}),
        (b"a&b=", {"a": "", "b": ""}),
        (b"%61=%31+2%2B", {"a": "1 2+"}),
        (b"a=1=2", {"a": "1=2"}),
        (b"&&=x&", {}),
        (b"a=%zz", {"a": "%zz"}),
        (b"a=\xff%ff", {"a": "��"}),
        ("token=schlüssel".encode(), {"token": "schlüssel"}),
        (b"a=\xff", {"a": "\ufffd"}),
    ],
)
def test_parse_query(raw: bytes, parsed: dict[str, str]) -> None:
    assert parse_query(raw) == parsed


@pytest.mark.parametrize(
    ("raw", "masked"),
    [
        (b"token=secret", "token=***"),
        (b"a=1&token=secret&b=2", "a=1&token=***&b=2"),
        (b"%74oken=secret&Token=secret&+token=secret", "%74oken=***&Token=***&+token=***"),
        (b"api_key=secret&client-secret=secret&count=1&token", "api_key=***&client-secret=***&count=1&token"),
        (b"", ""),
    ],
)
def test_mask_query(raw: bytes, masked: str) -> None:
    assert mask_query(raw) == masked


@given(st.text(alphabet="0123456789+- ._٣²", max_size=30))
def test_numbers(text: str) -> None:
    expected = int(text) if text and set(text) <= set("0123456789") else None
    assert unsigned(text, 2**32) == (expected if expected is not None and expected <= 2**32 else None)


def test_remaining() -> None:
    assert [remaining_s(expires_at, 1000) for expires_at in (0, 900, 1000, 1001, 2000, 2001)] == [0, 1, 1, 1, 1, 2]
    assert [remaining_tries(*pair) for pair in [(3, 1), (3, 3), (1, 2), (0, 0), (0, 70_000)]] == [2, 0, 0, 65535, 65535]


def test_elapsed_ms() -> None:
    clock = ManualClock()
    job_id = IdMaker(clock).make(lmstfy_delay_s=7)
    now = clock.advance("250ms")
    assert elapsed_ms(job_id, now) == elapsed_ms("1" + job_id, now) == 250
    assert elapsed_ms(job_id, now - 1000) == 0, "made in the future"
    assert [elapsed_ms(text, now) for text in ("", "x", "order-42", "u" * 26, "11" + job_id)] == [0] * 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
BLANKS = st.text(alphabet=" \t\r\n", max_size=3).map(str.encode)


@given(st.lists(st.tuples(BLANKS, JSON.map(to_json) | st.just(b'"\\uD83D"'), BLANKS), max_size=6), BLANKS)
def test_elements_of_an_array_are_cut_out_byte_for_byte(elements: list[tuple[bytes, bytes, bytes]], end: bytes) -> None:
    text = b"[" + b",".join(b"".join(element) for element in elements) + end + b"]"
    assert split_array(text) == [element for _, element, _ in elements]


@given(st.binary(max_size=60))
def test_anything_else_is_refused_and_nothing_worse(text: bytes) -> None:
    with contextlib.suppress(Refused):
        assert all(msgspec.json.decode(element, type=msgspec.Raw) for element in split_array(b"[" + text))
