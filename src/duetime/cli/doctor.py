"""`duetime doctor`: is everything safe, and if not, what to do about it."""

from typing import Annotated

import typer
from rich.text import Text

from duetime.cli.doctor_checks import Finding, Grade
from duetime.cli.doctor_host import examine_host
from duetime.cli.doctor_store import examine_address
from duetime.cli.options import Target, takes_options
from duetime.cli.output import Answer, safe
from duetime.model.errors import DuetimeError

STYLES = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}


class NotWell(DuetimeError):
    """The doctor found something that must be mended."""

    code = "not_well"
    status = 409


@takes_options
def doctor(
    target: Target,
    deep: Annotated[bool, typer.Option("--deep", help="Walk the whole store and prove that it is sound.")] = False,
) -> None:
    """Check that settings and stores are safe, and print how to fix what is not.

    With --url: that store or server, its clock and its safety. Without: what a server started here would use, that is
    its settings, ports, folders and stores. Exits with 1 if anything failed.

    --deep is slow on a large store and only means something while nothing else runs.

    Examples:
        duetime doctor
        duetime doctor --deep --url sqlite:///var/lib/duetime/jobs.db
        duetime doctor --json
    """
    answer = target.answer
    seen = dict.fromkeys(Grade, 0)
    findings = examine_address(target, deep=deep) if target.is_chosen else examine_host(deep=deep)
    for finding in findings:
        seen[finding.grade] += 1
        tell(answer, finding)
    if seen[Grade.FAIL]:
        raise NotWell(f"{seen[Grade.FAIL]} failed, {seen[Grade.WARN]} to look at, {seen[Grade.OK]} fine")
    if not target.json:
        answer.console.print(f"\n{seen[Grade.OK]} fine, {seen[Grade.WARN]} to look at")


def tell(answer: Answer, finding: Finding) -> None:
    document = {
        "check": finding.check,
        "grade": finding.grade,
        "what": finding.what,
        "why": finding.why,
        "fix": finding.fix,
    }
    text = Text.assemble((f"{finding.grade:<5}", STYLES[finding.grade]), safe(finding.what))
    if finding.why:
        text.append(f"\n     because {safe(finding.why)}", style="dim")
        text.append(f"\n     do: {safe(finding.fix)}")
    answer.show(document, text)
