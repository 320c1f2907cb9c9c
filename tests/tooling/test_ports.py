import socket

from tests.plugins.ports import find_free_port, kernels_ports


def test_a_free_port_is_none_that_the_kernel_gives_to_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert other.getsockname()[1] in kernels_ports()
    ports = {find_free_port() for _ in range(20)}
    assert len(ports) > 1
    assert ports.isdisjoint(kernels_ports())
