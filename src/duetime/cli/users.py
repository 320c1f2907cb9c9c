"""`duetime user ...`: passwords of those who administer a server."""

import getpass
import sys

from duetime.cli.options import AnswerForm, takes_options
from duetime.cli.output import Answer
from duetime.model.errors import InvalidRequest
from duetime.protocols.logins import hash_password


@takes_options
def hash_(form: AnswerForm) -> None:
    """Print the hash of a password, for the table accounts in duetime.toml.

    Asks for the password in a terminal, else reads it from stdin. It is never an argument: other users of the machine
    can see those.
    """
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise InvalidRequest("the two passwords must be the same")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    hashed = hash_password(password)
    Answer(as_json=form.json).tell({"hash": hashed}, hashed)
