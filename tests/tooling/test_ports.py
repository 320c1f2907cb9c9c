import socket
import subprocess
import sys
from pathlib import Path

from tests.plugins.ports import claim, find_free_port, kernels_ports


def test_a_free_port_is_none_that_the_kernel_gives_to_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert other.getsockname()[1] in kernels_ports()
    ports = {find_free_port() for _ in range(20)}
    assert len(ports) > 1
    assert ports.isdisjoint(kernels_ports())


def test_a_port_belongs_to_one_process() -> None:
    port = find_free_port()
    assert not claim(port)
    code = f"from tests.plugins.ports import claim; print(claim({port}))"
    root = Path(__file__).parents[2]
    other = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert other.stdout == "False\n"
