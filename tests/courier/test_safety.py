"""Where callbacks go and who they are from: no private targets, TLS, signatures."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from duetime.callbacks.caller import Caller, GuardedResolver, attempt_headers
from duetime.callbacks.courier import CourierOptions
from duetime.callbacks.request import CallbackRequest
from duetime.callbacks.targets import AllowedTargets, ForbiddenTarget, read_networks
from duetime.model.errors import InvalidRequest, InvalidSettings
from duetime.model.topic import Method, Topic, check_topic
from tests.courier.conftest import World
from tests.courier.receiver import Receiver
from tests.plugins.ci import missing_service
from tests.plugins.until import until

PRIVATE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.5.5", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "198.18.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1", "192.0.0.192",
    "192.0.0.9", "192.0.0.170", "192.88.99.1", "168.63.129.16", "100.100.100.200", "203.0.113.7", "240.0.0.1",
    "::127.0.0.1", "::ffff:0:7f00:1", "::ffff:168.63.129.16", "64:ff9b::a9fe:a9fe", "64:ff9b::c000:c0",
    "64:ff9b:1::1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1::808:808", "2002:a83f:8110::1", "2001::1",
    "2001:0:7f00:1::f7f7:f7f7", "2001:1::1", "2001:4:112::1", "2606:4700::5efe:a00:1",
    "2606:4700::200:5efe:a9fe:a9fe", "fe80::5efe:808:808", "3fff::1", "5f00::1", "100::1", "fd20:ce::254", "fec0::1",
    "4000::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_no_address_of_ours_is_called(address: str) -> None:
    with pytest.raises(ForbiddenTarget):
        AllowedTargets().check_address(ip_address(address))
    with pytest.raises(ForbiddenTarget):
        AllowedTargets().check(f"[{address}]" if ":" in address else address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "168.63.129.17", "192.0.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_called(address: str) -> None:
    AllowedTargets().check_address(ip_address(address))


def test_networks_are_allowed_by_name() -> None:
    targets = AllowedTargets(read_networks("10.1.0.0/16, ::1"))

    targets.check("10.1.2.3")
    targets.check("::1")
    targets.check("::ffff:10.1.2.3")
    with pytest.raises(ForbiddenTarget):
        targets.check("10.2.0.1")
    with pytest.raises(InvalidSettings):
        read_networks("10.0.0.0/99")


class TestNothingAllowed:
    @pytest.fixture
    def options(self) -> CourierOptions:
        return CourierOptions(grace_s=2)

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
    async def test_a_receiver_on_this_machine_hears_nothing(self, world: World, receiver: Receiver, host: str) -> None:
        await world.topic(callback=f"http://{host}:{receiver.port}/")

        await world.add("1")
        job = await world.waits("1")

        assert "must be public" in job.error
        assert receiver.calls == []
        assert receiver.open == 0


ODD_HOSTS = [
    "2130706433", "127.1", "0177.0.0.1", "0", "0x7f.1", "0x7f000001", "127.0.0.1.", "127.0.0.01", "a.0x1", "%31",
]  # fmt: skip


@pytest.mark.parametrize("host", ODD_HOSTS)
async def test_a_host_is_a_name_or_an_address_as_it_is_usually_written(receiver: Receiver, host: str) -> None:
    """Whatever the HTTP client and the resolver make of it, and also where loopback is allowed."""
    url = f"http://{host}:{receiver.port}/"
    with pytest.raises(InvalidRequest) as refused:
        check_topic(Topic(key="mail", callback=url))
    assert refused.value.fields["path"] == "$.callback"

    with pytest.raises(ForbiddenTarget):
        AllowedTargets([ip_network("0.0.0.0/0")]).check(host)
    async with Caller(AllowedTargets([ip_network("0.0.0.0/0")])) as caller:
        answer = await caller.call(CallbackRequest("GET", url, {}), timeout_ms=2000, verify=True)
    assert "must be a name or an address" in answer.error
    assert receiver.open == 0


@pytest.mark.parametrize(
    "host", ["example.com", "a", "a_b.c-d", "1.example", "xn--nxasmq6b.example.", "8.8.8.8", "[::1]"]
)
def test_hosts_that_are_fine(host: str) -> None:
    check_topic(Topic(key="mail", callback=f"https://{host}:8443/x"))


async def test_the_connection_goes_to_the_address_that_was_checked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves to a public address first and to a private one afterwards is asked for once."""
    answers = iter(["127.0.0.1", "169.254.169.254"])
    asked: list[str] = []

    async def resolve(host: str, port: int, *_: object, **__: object) -> object:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    async with Caller(AllowedTargets([ip_network("127.0.0.0/8")])) as caller:
        letter = CallbackRequest("GET", f"http://rebinding.example:{receiver.port}/", {})
        first = await caller.call(letter, timeout_ms=20_000, verify=True)
        second = await caller.call(letter, timeout_ms=20_000, verify=True)

    assert (first.body, second.body) == (b"ok", b"ok")  # the second on the same, checked connection
    assert asked == ["rebinding.example"]


async def test_one_private_address_among_others_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, *_: object, **__: object) -> object:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    resolver = GuardedResolver(AllowedTargets())
    with pytest.raises(ForbiddenTarget):
        await resolver.resolve("mixed.example", 80)


async def test_proxies_of_the_environment_are_ignored(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    await world.topic()

    await world.add("1")
    await world.gone("1")

    assert receiver.calls[0].target.startswith("/mail?")


# --- signatures


@pytest.mark.parametrize("method", Method)
async def test_a_signed_call_can_be_verified_with_either_secret(
    world: World, receiver: Receiver, method: Method
) -> None:
    topic = await world.topic(method=method, secret="new")
    place = world.place("mail")
    await world.add("job/1", to="ann")
    [call] = await receiver.got(1)
    Webhook(topic.secret).verify(call.body, call.headers, json_parse=False)
    assert call.headers["webhook-id"] == "job/1"

    changed = await world.topics.edit(place, {"secret": "new"})
    lane = world.lane("mail")
    assert lane
    await until(lambda: lane.topic.secret == changed.secret)
    await world.add("2", to="ann")
    _, second = await receiver.got(2)
    for secret in (topic.secret, changed.secret):
        Webhook(secret).verify(second.body, second.headers, json_parse=False)
    later = attempt_headers(changed, CallbackRequest("POST", "", {"webhook-id": "2"}), changed.old_secret_until)
    assert later["webhook-signature"].count("v1,") == 1


async def test_a_compatible_topic_sends_no_signature(world: World, receiver: Receiver) -> None:
    await world.topic()
    await world.add("1")

    [call] = await receiver.got(1)

    assert "webhook-signature" not in call.headers


# --- TLS


def self_signed(folder: Path) -> tuple[str, str]:
    """A certificate that nobody has signed but itself, and its key."""
    program = shutil.which("openssl")
    if program is None:
        missing_service("openssl is not installed")
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run(
        [*command, "-subj", "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return str(folder / "certificate.pem"), str(folder / "key.pem")


async def test_certificates_are_verified_unless_the_topic_says_otherwise(world: World, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed(tmp_path))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await world.topic("strict", callback=url)
        await world.topic("lax", callback=url, verify_tls=False)
        await world.add("1", key="strict")
        await world.add("1", key="lax")

        await world.gone("1", key="lax")
        job = await world.waits("1", key="strict")

    assert "certificate" in job.error.lower()
