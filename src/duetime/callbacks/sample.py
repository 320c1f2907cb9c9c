"""Makes one sample call of a topic, to show what its receiver gets and answers. Nothing is stored or counted."""

from datetime import tzinfo

from msgspec import Struct

from duetime.callbacks.caller import NOT_COMPRESSED, Caller
from duetime.callbacks.outcome import CallbackAnswer, describe, judge
from duetime.callbacks.request import CallbackRequest, write_request
from duetime.callbacks.signing import attempt_headers
from duetime.callbacks.targets import AllowedTargets
from duetime.callbacks.topic_registry import TopicAddress, secrets_of
from duetime.model.clock import SystemClock
from duetime.model.condition import parse
from duetime.model.job import Delivery, Lease
from duetime.model.topic import Topic

SAMPLE_ID = "sample"
SAMPLE_BODY = b'{"sample":"1"}'


class Sample(Struct, frozen=True):
    """The request, the answer, and how the courier would judge it."""

    request: CallbackRequest
    headers: dict[str, str]
    answer: CallbackAnswer
    verdict: str
    why: str


async def call_sample(
    topic: Topic, address: TopicAddress, targets: AllowedTargets, *, body: bytes = b"", zone: tzinfo | None = None
) -> Sample:
    """Make one call, without the quick repeats of a real attempt."""
    now_ms = SystemClock().now_ms()
    delivery = Delivery(
        Lease(address.queue, SAMPLE_ID, now_ms, 1), body or SAMPLE_BODY, now_ms, now_ms, topic.priority, 0, 1
    )
    request = write_request(topic, delivery, zone)
    signed = attempt_headers(secrets_of(topic, now_ms), request, now_ms=now_ms)
    async with Caller(targets) as caller:
        answer = await caller.call(request, timeout_ms=topic.timeout_ms, verify=topic.verify_tls, headers=signed)
    verdict = judge(topic, parse(topic.retry_if), answer)
    headers = {**NOT_COMPRESSED, **request.headers, **signed}
    return Sample(request, headers, answer, str(verdict), describe(verdict, answer))
