"""plotly.js as text, from the installed package `plotly`.

The one place that knows where it comes from; nothing of it is kept in this repository.
"""

from duetime.errors import InvalidRequest

END_OF_SCRIPT = "</script"


def plotly_source() -> str:
    """Ready to stand in a script element. Raises InvalidRequest where plotly is not installed."""
    try:
        from plotly import offline  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise InvalidRequest("a report needs plotly: pip install 'duetime[spark]'") from None
    source: str = offline.get_plotlyjs()
    # Within a string "<\/script" is the same text and does not end the element.
    return source.replace(END_OF_SCRIPT, "<\\/script")
