import pytest

from densekd.serve.web_server import foreign_request, open_listener, own_hosts


def test_the_first_free_port_is_taken() -> None:
    first = open_listener("127.0.0.1", [0])
    assert first is not None
    with first:
        taken = first.getsockname()[1]
        assert open_listener("127.0.0.1", [taken]) is None
        second = open_listener("127.0.0.1", [taken, 0])
        assert second is not None
        second.close()


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({"host": "127.0.0.1:81"}, None),
        ({"host": "localhost:81"}, None),
        ({"host": "[::1]:81", "origin": "http://localhost:81"}, None),
        ({}, "127.0.0.1"),
        ({"host": "localhost"}, "127.0.0.1"),
        ({"host": "localhost:80"}, "127.0.0.1"),
        ({"host": "127.0.1.1:81"}, "127.0.0.1"),
        ({"host": "example.com:81"}, "127.0.0.1"),
        ({"host": "localhost:81", "origin": "http://example.com"}, "other sites"),
        ({"host": "localhost:81", "origin": "http://localhost"}, "other sites"),
        ({"host": "localhost:81", "origin": "https://localhost:81"}, "other sites"),
        ({"host": "localhost:81", "origin": "null"}, "other sites"),
    ],
)
def test_requests_of_other_sites_are_recognised(headers: dict[str, str], refusal: str) -> None:
    found = foreign_request(headers, own_hosts(81))
    assert found is None if refusal is None else found is not None and refusal in found


def test_a_request_through_a_tunnel_is_told_the_port() -> None:
    found = foreign_request({"host": "127.0.0.1:8080"}, own_hosts(7860))
    assert found == "Use the address 127.0.0.1:7860 or [::1]:7860 or localhost:7860."


def test_clients_leave_out_the_port_80() -> None:
    for host in ("localhost", "127.0.0.1", "localhost:80"):
        assert foreign_request({"host": host, "origin": f"http://{host}"}, own_hosts(80)) is None
    for host in ("example.com", "localhost:81", ""):
        assert foreign_request({"host": host}, own_hosts(80)) is not None


def test_another_address_of_this_computer_may_be_named() -> None:
    hosts = own_hosts(81, "127.0.1.1")
    assert foreign_request({"host": "127.0.1.1:81", "origin": "http://127.0.1.1:81"}, hosts) is None
    assert foreign_request({"host": "127.0.1.2:81"}, hosts) is not None
