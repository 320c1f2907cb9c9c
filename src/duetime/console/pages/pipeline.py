"""The page of the pipeline: batches from Spark, the last audit, reconcile, forecast and round, links to reports.

It shows what the pipelines left in the folder that the setting `lake` names; the server itself never runs Spark.
"""

import asyncio
from datetime import datetime

from starlette.responses import FileResponse, Response

from duetime.console.charts import Bar
from duetime.console.formats import compact
from duetime.console.pipeline_files import ForecastSummary, find_report, local_lake, read_lake
from duetime.console.visit import Visit
from duetime.model.errors import NotFound

BARS = 96
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'none'"
)
"""A report has its scripts inside. The sandbox keeps them from the console: it is another origin to them."""


async def show_pipeline(visit: Visit) -> Response:
    lake = local_lake(visit.parts.settings.lake)
    known = await asyncio.to_thread(read_lake, lake) if lake is not None else None
    return await visit.page(
        "pipeline.html",
        setting=visit.parts.settings.lake,
        known=known,
        bars_ahead=_bars(visit, known.forecast) if known and known.forecast else [],
    )


def _bars(visit: Visit, forecast: ForecastSummary) -> list[Bar]:
    """Jobs of all queues that fall due, known and expected, in at most BARS steps."""
    loads = [pending + expected for pending, expected in zip(forecast.pending, forecast.expected, strict=False)]
    width = max(1, -(-len(loads) // BARS))
    steps = [round(sum(loads[at : at + width])) for at in range(0, len(loads), width)]
    every = max(1, len(steps) // 8)
    made: list[Bar] = []
    for place, value in enumerate(steps):
        at = datetime.fromtimestamp((forecast.start_at + place * width * forecast.step_ms) / 1000, visit.zone)
        made.append(Bar(value, f"{at:%m-%d %H:%M}: {compact(value)}", f"{at:%H:%M}" if place % every == 0 else ""))
    return made


async def show_report(visit: Visit) -> Response:
    lake = local_lake(visit.parts.settings.lake)
    path = find_report(lake, visit.query.get("name", "")) if lake is not None else None
    if path is None:
        raise NotFound(visit.say("pipeline.no_report"))
    return FileResponse(path, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})
