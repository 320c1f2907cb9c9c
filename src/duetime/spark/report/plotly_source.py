"""plotly.js as text, from the installed package `plotly`.

No other module knows where it comes from; this repository has no copy of it.
"""

from duetime.model.errors import InvalidRequest

END_OF_SCRIPT = "</script"


def plotly_source() -> str:
    """The source, ready for a script element. Raises InvalidRequest if plotly is not installed."""
    try:
        from plotly import offline  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise InvalidRequest("a report needs plotly: pip install 'duetime[spark]'") from None
    source: str = offline.get_plotlyjs()
    # Within a string "<\/script" is the same text and does not end the element.
    return source.replace(END_OF_SCRIPT, "<\\/script")
