"""A session on MariaDB or MySQL that sends several statements in one packet, and reads their answers one by one.

PyMySQL puts values into the text of a statement. Its way to do that takes more CPU than all the rest of a batch, so it
is done here: most texts need no escape, and bytes are written in hexadecimal.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pymysql
from pymysql.connections import Connection
from pymysql.constants import SERVER_STATUS
from pymysql.converters import escape_string
from pymysql.cursors import Cursor

from duetime.stores.sql.server_step import Rows, ServerSession
from duetime.stores.sql.step import Command

PACKET_CHARS = 1_000_000
"""A packet takes no second statement beyond this size, and an INSERT no second row."""
BEGIN_S = 2
"""How long the start of a transaction may take, which waits for nothing; see `MysqlSession._next_answer`."""
CLIENT_ERRORS = range(2000, 3000)
"""Codes of the driver: the connection could not be made, or is lost."""
_PLAIN = re.compile(r"[0-9A-Za-z_.:@/ -]*").fullmatch


class MysqlSession(ServerSession):
    """A query of this dialect is one statement or several; its answer is that of the one that answers rows.

    The parameter `rows` of a query holds many rows for one INSERT.
    """

    packet_chars = PACKET_CHARS

    def __init__(self, connection: Connection, queries: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.connection, self._queries = connection, queries

    @property
    def is_lost(self) -> bool:
        return not self.connection.open

    @property
    def is_in_transaction(self) -> bool:
        status = cast("int", self.connection.server_status)  # pyright: ignore
        return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def close(self) -> None:
        self.connection.close()

    def _run(self, commands: Sequence[Command]) -> list[Rows]:
        self.failed_at = None
        self.connection._read_timeout = self.answer_s  # pyright: ignore
        answers: list[Rows] = [[] for _ in commands]
        with self.connection.cursor() as cursor:
            texts = [(at, text) for at, command in enumerate(commands) for text in self._texts(command)]
            for packet in _packets(texts, self.packet_chars):
                self._send(cursor, packet, answers)
        return answers

    def _send(self, cursor: Cursor, packet: Sequence[tuple[int, str]], answers: list[Rows]) -> None:
        """Each statement is given with the number of its command."""
        at = packet[0][0]
        try:
            cursor.execute(";\n".join(text for _, text in packet))
            for number, (at, _) in enumerate(packet):
                if number:
                    self._next_answer(cursor)
                if cursor.description:
                    answers[at].extend(cursor.fetchall())
        except pymysql.MySQLError as error:
            if not (error.args and error.args[0] in CLIENT_ERRORS) and self.connection.open:
                self.failed_at = at
            raise

    def _next_answer(self, cursor: Cursor) -> None:
        """Read the answer of the packet's next statement.

        MariaDB leaves the rest of a packet unanswered if KILL QUERY comes between two statements. It soon ends a
        session that waits in a transaction, and none outside of one. There the next statement starts a transaction.
        """
        usual = cast("float", self.connection._read_timeout)  # pyright: ignore
        if not self.is_in_transaction:
            self.connection._read_timeout = BEGIN_S  # pyright: ignore
        try:
            cursor.nextset()
        finally:
            self.connection._read_timeout = usual  # pyright: ignore

    def _texts(self, command: Command) -> Iterator[str]:
        """A command's statements with their values."""
        name, parameters = command
        if "rows" in parameters:
            [statement] = self._queries[name]
            yield from self._inserts(statement, cast("Sequence[Sequence[object]]", parameters["rows"]))
            return
        values = {key: self._literal(value) for key, value in parameters.items()}
        for statement in self._queries[name]:
            yield statement % values if values else statement

    def _inserts(self, statement: str, rows: Sequence[Sequence[object]]) -> Iterator[str]:
        head, _ = statement.rsplit("VALUES", 1)
        parts, size = list[str](), 0
        for row in rows:
            text = f"({','.join(map(self._literal, row))})"
            if parts and size + len(text) > PACKET_CHARS:
                yield f"{head}VALUES{','.join(parts)}"
                parts, size = [], 0
            parts.append(text)
            size += len(text)
        yield f"{head}VALUES{','.join(parts)}"

    def _literal(self, value: object) -> str:
        """A value as SQL; a list becomes the operand of IN."""
        if isinstance(value, str):
            return f"'{value}'" if _PLAIN(value) else f"'{escape_string(value)}'"
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(int(value))
        if isinstance(value, bytes):
            return f"x'{value.hex()}'"
        if isinstance(value, (list, tuple)):
            # SQL has no empty list, and nothing equals NULL.
            return f"({','.join(map(self._literal, cast('Sequence[object]', value) or [None]))})"
        raise TypeError(f"{type(value)} is no value for MySQL")


class AnnouncementSession(MysqlSession):
    """Runs each statement by itself: a poll is one statement, and a transaction around it would be three more.

    Each has its own packet: outside a transaction, the server would never end a session that waits for the rest of one.
    """

    packet_chars = 0

    def begin(self, *, read_only: bool) -> None:
        self._later = []

    def commit(self) -> None:
        if self._later:
            self.fetch([])


def _packets(texts: Sequence[tuple[int, str]], most: int) -> Iterator[list[tuple[int, str]]]:
    packet, size = list[tuple[int, str]](), 0
    for at, text in texts:
        if packet and size + len(text) > most:
            yield packet
            packet, size = [], 0
        packet.append((at, text))
        size += len(text)
    if packet:
        yield packet
