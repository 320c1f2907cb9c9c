"""`duetime version`."""

from duetime import __version__
from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer


@takes_options
def version(target: Target) -> None:
    """Print the version."""
    Answer(as_json=target.json).tell({"version": __version__}, __version__)
