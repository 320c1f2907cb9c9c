"""The engine on one local Redis: rates, lateness, bursts, cancels, memory, growth, ten thousand queues.

make bench ARGS=core                      everything at full size (about ten minutes, 3 GB)
make bench ARGS="core --scale 0.05"       the same, small
make bench ARGS="core rates memory"       only these parts
"""

import argparse
from collections.abc import Callable

from bench.core_parts import flood, lateness, rates, scale


def parts(factor: float) -> dict[str, Callable[[], str]]:
    def scaled(count: int) -> int:
        return max(int(count * factor), 500)

    return {
        "rates": lambda: rates.report(scaled(100_000), rounds=5),
        "lateness": lambda: lateness.report(
            count=scaled(10_000), over_ms=10_000, behind=scaled(1_000_000), behind_sqlite=scaled(1_000_000)
        ),
        "burst": lambda: scale.burst(scaled(300_000)),
        "flood": lambda: flood.report(scaled(100_000)),
        "cancel": lambda: scale.cancels(scaled(1_000_000), scaled(10_000)),
        "memory": lambda: scale.memory(scaled(1_000_000), (64, 100, 200, 1000)),
        "growth": lambda: scale.growth(scaled(10_000), scaled(5_000_000), scaled(50_000)),
        "queues": lambda: scale.many_queues(scaled(10_000), idle_s=10),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="which parts, default all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes")
    options = parser.parse_args()
    available = parts(options.scale)
    if unknown := set(options.parts) - set(available):
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(available)}")
    for name in options.parts or available:
        print(f"## {name}")
        print(available[name](), end="\n\n", flush=True)
