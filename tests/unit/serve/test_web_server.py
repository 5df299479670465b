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
        ({"host": "127.0.0.1:80"}, None),
        ({"host": "localhost:80"}, None),
        ({"host": "[::1]:80", "origin": "http://localhost:80"}, None),
        ({}, "127.0.0.1"),
        ({"host": "localhost"}, "127.0.0.1"),
        ({"host": "localhost:81"}, "127.0.0.1"),
        ({"host": "example.com:80"}, "127.0.0.1"),
        ({"host": "localhost:80", "origin": "http://example.com"}, "other sites"),
        ({"host": "localhost:80", "origin": "https://localhost:80"}, "other sites"),
        ({"host": "localhost:80", "origin": "null"}, "other sites"),
    ],
)
def test_requests_of_other_sites_are_recognised(headers: dict[str, str], refusal: str) -> None:
    found = foreign_request(headers, own_hosts(80))
    assert found is None if refusal is None else found is not None and refusal in found
