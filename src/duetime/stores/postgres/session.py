"""A session on PostgreSQL that sends several prepared statements together, by libpq's pipeline mode.

psycopg's own cursors and pipelines cost more CPU than the statements themselves, so parameters are encoded here:
numbers are bigint, texts are text, bytes are bytea, lists are arrays of these. Answers are decoded by psycopg.
"""

import re
import select
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple, cast

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from duetime.stores.sql.server_step import Rows, ServerSession
from duetime.stores.sql.step import Command

_PARAMETER = re.compile(r"%\((\w+)\)[sb]")
_TEXT, _BINARY = pq.Format.TEXT, pq.Format.BINARY
_INT8, _TEXT_OID, _BYTEA = 20, 25, 17
_ARRAYS = {_INT8: 1016, _TEXT_OID: 1009, _BYTEA: 1001}
_int8 = Struct(">q").pack
_length = Struct(">i").pack
_array_header = Struct(">iiIii").pack
_NULL = _length(-1)

Encoded = tuple[bytes | None, int, pq.Format]
"""A value, the number of its type (0 for "find out") and its format."""


class Statement(NamedTuple):
    """A statement with numbered parameters, and the names of these in their order."""

    text: bytes
    names: tuple[str, ...]

    @classmethod
    def parse(cls, query: str) -> "Statement":
        names: dict[str, int] = {}
        text = _PARAMETER.sub(lambda found: f"${names.setdefault(found[1], len(names) + 1)}", query)
        return cls(text.encode(), tuple(names))


def encode(value: object) -> Encoded:
    if isinstance(value, str):
        return value.encode(), _TEXT_OID, _BINARY
    if isinstance(value, int):
        return _int8(value), _INT8, _BINARY
    if isinstance(value, bytes):
        return value, _BYTEA, _BINARY
    if value is None:
        return None, 0, _BINARY
    if isinstance(value, list):
        return _encode_array(cast("list[Any]", value))
    raise TypeError(f"{type(value)} is no value for PostgreSQL")


def _encode_array(values: list[Any]) -> Encoded:
    if not values:
        return b"{}", 0, _TEXT
    first = values[0]
    if first is None:
        first = next((value for value in values if value is not None), "")
    if isinstance(first, int):
        if len(values) == 1:
            return _one_number(first)
        flat = [8] * (2 * len(values))
        flat[1::2] = values
        return _header(_INT8, len(values)) + _numbers(len(values)).pack(*flat), _ARRAYS[_INT8], _BINARY
    kind = _BYTEA if isinstance(first, bytes) else _TEXT_OID
    parts = [_header(kind, len(values))]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            data = value if kind == _BYTEA else value.encode()
            parts += (_length(len(data)), data)
    return b"".join(parts), _ARRAYS[kind], _BINARY


def _header(kind: int, count: int) -> bytes:
    return _array_header(1, 1, kind, count, 1)


@lru_cache(1024)
def _one_number(value: int) -> Encoded:
    """A push of one job is mostly such arrays, and most of these are always the same."""
    return _header(_INT8, 1) + _numbers(1).pack(8, value), _ARRAYS[_INT8], _BINARY


@lru_cache(64)
def _numbers(count: int) -> Struct:
    return Struct(">" + "iq" * count)


class EncodedCommand(NamedTuple):
    """A command as libpq takes it."""

    name: str
    text: bytes
    values: Sequence[bytes | None]
    types: tuple[int, ...]
    formats: Sequence[pq.Format]


class PostgresSession(ServerSession):
    """`statements` are all that the session runs, by name. Unless it `prepares`, each is parsed every time."""

    def __init__(
        self, connection: "psycopg.Connection[Any]", statements: Mapping[str, Statement], *, prepares: bool
    ) -> None:
        super().__init__()
        self.connection, self._statements, self._prepares = connection, statements, prepares
        self._pgconn = connection.pgconn
        self._transformer = Transformer(connection)
        self._prepared: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._named = 0
        self._socket = select.poll()
        self._socket.register(self._pgconn.socket, select.POLLIN)

    @property
    def is_lost(self) -> bool:
        return self.connection.closed

    @property
    def is_in_transaction(self) -> bool:
        return self._pgconn.transaction_status != pq.TransactionStatus.IDLE

    def close(self) -> None:
        self.connection.close()

    def _check(self) -> None:
        # An idle server sends nothing but the notice that it ends the connection.
        while self._socket.poll(0):
            self._pgconn.consume_input()
            self._pgconn.is_busy()

    def _run(self, commands: Sequence[Command]) -> list[Rows]:
        self.failed_at = None
        sent = [self._encode(command) for command in commands]
        try:
            expected, new = self._send(sent)
            results = self._results()
        except BaseException:
            self.connection.close()
            raise
        failed = next((at for at, result in enumerate(results) if result.status in _FAILURES), len(results))
        for at, key in new.items():
            if at >= failed:
                del self._prepared[key]
        if failed < len(results):
            self.failed_at = expected[failed]
            raise error_from_result(results[failed], encoding="utf-8")
        return [self._rows(result) for at, result in enumerate(results) if at not in new]

    def _encode(self, command: Command) -> EncodedCommand:
        name, parameters = command
        statement = self._statements[name]
        if not statement.names:
            return EncodedCommand(name, statement.text, (), (), ())
        encoded = [encode(parameters[parameter]) for parameter in statement.names]
        return EncodedCommand(name, statement.text, *zip(*encoded, strict=True))

    def _send(self, commands: Sequence[EncodedCommand]) -> tuple[list[int], dict[int, tuple[str, tuple[int, ...]]]]:
        """Which command each result will belong to, and which results will be those of new prepared statements."""
        pgconn, expected, new = self._pgconn, list[int](), dict[int, tuple[str, tuple[int, ...]]]()
        pgconn.enter_pipeline_mode()
        for at, (name, text, values, types, formats) in enumerate(commands):
            if not self._prepares:
                pgconn.send_query_params(text, values, types, formats, _BINARY)
            else:
                key = name, types
                if key not in self._prepared:
                    self._named += 1
                    self._prepared[key] = f"duetime_{self._named}".encode()
                    pgconn.send_prepare(self._prepared[key], text, types)
                    new[len(expected)] = key
                    expected.append(at)
                pgconn.send_query_prepared(self._prepared[key], values, formats, _BINARY)
            expected.append(at)
        pgconn.pipeline_sync()
        return expected, new

    def _results(self) -> list[pq.abc.PGresult]:
        """Read all results up to the end of the pipeline."""
        pgconn, results = self._pgconn, list[pq.abc.PGresult]()
        if unsent := pgconn.flush():
            self._socket.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
        while True:
            while pgconn.is_busy():
                if not self._socket.poll(self.answer_s * 1000):
                    raise psycopg.OperationalError(f"no answer for {self.answer_s:g} s")
                pgconn.consume_input()
                if unsent and not (unsent := pgconn.flush()):
                    self._socket.modify(pgconn.socket, select.POLLIN)
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == pq.ConnStatus.BAD:
                    break
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                pgconn.exit_pipeline_mode()
                break
            else:
                results.append(result)
        return results

    def _rows(self, result: pq.abc.PGresult) -> Rows:
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


_FAILURES = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED, pq.ExecStatus.BAD_RESPONSE)
