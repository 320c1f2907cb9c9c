"""What may be called what."""

import msgspec
import pytest

from duetime.model.errors import BY_CODE, InvalidId, InvalidName, InvalidRequest
from duetime.model.job import TRANSITIONS, Counts, NewJob, Priority
from duetime.model.names import Queue, check_attributes, check_id, check_namespace, check_queue


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "0", "-", "_", ".", "x" * 255])
def test_good_names(name: str) -> None:
    assert check_namespace(name) == name
    assert check_queue(name, name) == Queue(name, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "namespace name must have 1 to 255 characters, got 0"),
        ("x" * 256, "namespace name must have 1 to 255 characters, got 256"),
        ("a b", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got 'a b'"),
        ("a/b", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got 'a/b'"),
        ("a:b", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got 'a:b'"),
        ("a{b}", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got 'a{b}'"),
        ("naïve", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got 'naïve'"),
        ("٣", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got '٣'"),
        ("a\n", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got 'a\\n'"),
        ("a\0", "namespace name must contain only ASCII letters, digits, '-', '_' and '.', got 'a\\x00'"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_namespace(name)

    assert caught.value.message == message
    assert caught.value.fields == {"what": "namespace"}


def test_a_bad_queue_name_says_which_part_is_bad() -> None:
    with pytest.raises(InvalidName, match="queue name must have 1 to 255 characters, got 0"):
        check_queue("shop", "")
    with pytest.raises(InvalidName, match="namespace name must have 1 to 255 characters, got 0"):
        check_queue("", "mail")


def test_a_queue_is_written_with_a_slash_and_read_back() -> None:
    queue = Queue("shop.eu", "mail-2")

    assert str(queue) == "shop.eu/mail-2"
    assert Queue.parse("shop.eu/mail-2") == queue


@pytest.mark.parametrize(
    "job_id", ["1", "x" * 128, "a b", "日本語", "🙂", "é", "'; DROP TABLE jobs; --", "%d", "a/b:c"]
)
def test_good_ids(job_id: str) -> None:
    assert check_id(job_id) == job_id


@pytest.mark.parametrize(
    ("job_id", "message"),
    [
        ("", "job id must have 1 to 128 characters, got 0"),
        ("x" * 129, "job id must have 1 to 128 characters, got 129"),
        ("a\nb", "job id must contain only printable characters, got 'a\\nb'"),
        ("a\0b", "job id must contain only printable characters, got 'a\\x00b'"),
        ("a\u200bb", "job id must contain only printable characters, got 'a\\u200bb'"),
        ("a\ud800b", "job id must contain only printable characters, got 'a\\ud800b'"),
    ],
)
def test_bad_ids(job_id: str, message: str) -> None:
    with pytest.raises(InvalidId) as caught:
        check_id(job_id)

    assert caught.value.message == message


@pytest.mark.parametrize(
    "attributes",
    [{}, {"trace": ""}, {"k" * 128: "v" * 4096}, {str(n): "x" for n in range(64)}, {"é": "a\nb"}],
)
def test_good_attributes(attributes: dict[str, str]) -> None:
    assert check_attributes(attributes) is attributes


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({str(n): "x" for n in range(65)}, "at most 64 attributes, got 65"),
        ({"": "x"}, "attribute name must have 1 to 128 printable characters"),
        ({"k" * 129: "x"}, "attribute name must have 1 to 128 printable characters"),
        ({"a\nb": "x"}, "attribute name must have 1 to 128 printable characters"),
        ({"a": "v" * 4097}, "attribute 'a' must have at most 4096 characters and no NUL"),
        ({"a": "\0"}, "attribute 'a' must have at most 4096 characters and no NUL"),
    ],
)
def test_bad_attributes(attributes: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_attributes(attributes)


# --- the nouns: defaults, being frozen, and that the transition table is complete


QUEUE = Queue("shop", "mail")


def test_a_new_job_is_due_immediately_with_five_tries_and_no_ttl() -> None:
    job = NewJob("a", b"hello")

    assert msgspec.structs.asdict(job) == {
        "id": "a",
        "body": b"hello",
        "delay_ms": 0,
        "due_at": None,
        "ttl_ms": 0,
        "tries": 5,
        "priority": Priority.NORMAL,
        "attributes": {},
        "born": 0,
        "attempt": 0,
    }


def test_the_total_counts_what_is_there_and_not_what_expired() -> None:
    assert Counts(delayed=1, ready=2, leased=3, dead=4, expired=100, now=5).total == 10


@pytest.mark.parametrize("verb", TRANSITIONS)
def test_every_row_of_the_table_is_complete(verb: str) -> None:
    places = ["leased"] if verb == "lease runs out" else ["absent", "dead", "leased", "waiting"]

    assert sorted(TRANSITIONS[verb]) == places


def test_every_outcome_is_a_place_a_change_or_an_error_code() -> None:
    outcomes = {outcome for row in TRANSITIONS.values() for outcome in row.values()}
    changes = {"created", "kept", "replaced", "removed", "moved", "waits", "dies", "waits or dies", "leased"}

    assert {code for code in outcomes - changes if code in BY_CODE} == {
        "job_exists",
        "job_running",
        "job_dead",
        "lease_lost",
    }
    assert outcomes - changes - set(BY_CODE) == {"not found", "gone"}
