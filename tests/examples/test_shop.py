"""Every story of examples/shop runs as one command, and prints what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

SHOP = Path(__file__).parents[2] / "examples" / "shop"

STORIES = {
    "recall.py": ["--day", "0.05"],
    "renewal.py": ["--day", "0.05"],
    "payment.py": ["--minute", "0.01"],
    "webhook.py": ["--minute", "0.02"],
}


def run(name: str, folder: Path) -> list[str]:
    command = [sys.executable, str(SHOP / name), *STORIES[name]]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert list(folder.iterdir()) == []  # nothing is left behind
    return ran.stdout.splitlines()


def test_every_story_is_tested() -> None:
    assert {one.name for one in SHOP.glob("*.py")} == set(STORIES)


@pytest.mark.parametrize("name", STORIES)
def test_a_story_tells_what_it_needs(name: str) -> None:
    help_text = (SHOP / name).read_text()
    assert f"python examples/shop/{name}" in help_text
    assert f"python examples/shop/{name}" in (SHOP.parent / "README.md").read_text()


def test_letters_go_out_before_memberships_end_in_their_order(tmp_path: Path) -> None:
    lines = run("recall.py", tmp_path)
    assert [line.split("letter to ")[1].split(",")[0] for line in lines] == ["eve", "ann", "bob"]


def test_a_renewed_member_gets_the_letter_later_and_one_who_left_gets_none(tmp_path: Path) -> None:
    assert run("renewal.py", tmp_path) == [
        "eve: no letter is waiting any more",
        "letter to ann",
        "letter to bob",
        "0 letters are left",
    ]


def test_a_worker_checks_payments(tmp_path: Path) -> None:
    lines = run("payment.py", tmp_path)
    assert "order-1 is paid: ship it" in lines
    assert "order-2 is not paid: cancel it and free the stock" in lines


def test_a_callback_is_tried_again_after_1_3_5_and_7_minutes(tmp_path: Path) -> None:
    lines = run("webhook.py", tmp_path)
    assert [line.split(": ")[1].split()[0] for line in lines] == ["503", "503", "503", "503", "ok"]
    waits = [float(line.split(" after ")[1].split()[0]) for line in lines]
    # Never early; the receiver's own clock rounds to a tenth of a minute, and each answer takes some time.
    assert all(waited >= minutes - 0.5 for waited, minutes in zip(waits, (0, 1, 3, 5, 7), strict=True))
