"""Topics: queues whose jobs are delivered to a callback URL."""

from msgspec import UNSET

from duetime.callbacks.topic_registry import TopicAddress
from duetime.model.clock import instant_ms
from duetime.model.errors import InvalidRequest
from duetime.model.job import Event
from duetime.model.names import check_queue
from duetime.model.topic import Status
from duetime.protocols.v1.request import AnyRequest, NativeRequest, Response
from duetime.wire import convert
from duetime.wire.convert import change_of, topic_of
from duetime.wire.messages import AddIn, SampleIn, TopicChangeIn, TopicIn, TopicsOut


def _address(request: AnyRequest) -> TopicAddress:
    return TopicAddress(request.pool, request.queue)


async def list_topics(request: NativeRequest[None, None]) -> Response:
    return Response(200, TopicsOut(await request.topics.list_topics(request.pool, request.queue.namespace)))


async def topic_counters(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.topics.counters(request.pool, request.queue.namespace))


async def add_topic(request: NativeRequest[TopicIn, None]) -> Response:
    address = TopicAddress(request.pool, check_queue(request.queue.namespace, request.message.topic))
    return Response(201, await request.topics.add(address, topic_of(request.message)))


async def get_topic(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.topics.get(_address(request)))


async def edit_topic(request: NativeRequest[TopicChangeIn, None]) -> Response:
    return Response(200, await request.topics.edit(_address(request), change_of(request.message)))


async def remove_topic(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.topics.remove(_address(request)))


async def put_online(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.topics.set_status(_address(request), Status.ONLINE))


async def put_offline(request: NativeRequest[None, None]) -> Response:
    return Response(200, await request.topics.set_status(_address(request), Status.OFFLINE))


async def test_topic(request: NativeRequest[SampleIn, None]) -> Response:
    body = convert.read_body(request.message.body, UNSET)
    return Response(200, await request.topics.sample(_address(request), body))


async def add_job(request: NativeRequest[AddIn, None]) -> Response:
    message = request.message
    if message.fix_time is not UNSET and message.due_at is not UNSET:
        raise InvalidRequest.not_both("fix_time", "due_at")
    moved = await request.topics.jobs.add(
        _address(request),
        request.make_id() if message.id is UNSET else message.id,
        convert.read_body(message.body, UNSET),
        fix_time="" if message.fix_time is UNSET else message.fix_time,
        due_at=None if message.due_at is UNSET else instant_ms(message.due_at),
    )
    return Response(201 if moved.event is Event.ACCEPTED else 200, convert.result_out(moved))
