"""The key of an endpoint of ours: only the whole key opens it, and any bytes are refused in words."""

import pytest

from adaptft.serving.openai_app import build_app

KEY = "sésame-4711"


@pytest.fixture(scope="module")
def client():
    testing = pytest.importorskip("fastapi.testclient")
    return testing.TestClient(build_app({}, KEY))


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer ", KEY, "Bearer sésame-471", "Bearer sésame-4711x", "bearer sésame-4711", "Bearer \x80\xff"],
)
def test_anything_but_the_key_is_refused(client, header):
    headers = {} if header is None else {"Authorization": header.encode("utf-8")}
    answer = client.get("/v1/models", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_the_key_opens_it_and_health_needs_none(client):
    assert client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}".encode()}).status_code == 200
    assert client.get("/health").status_code == 200


def test_keys_are_compared_in_constant_time():
    import ast
    import inspect

    from adaptft.serving import openai_app

    tree = ast.parse(inspect.getsource(openai_app._key_check))
    compared = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert compared == ["request.url.path == '/health'"]
