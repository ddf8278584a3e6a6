"""A few JSON requests to an endpoint, without a client library: a check must not depend on what it checks."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from adaptft.errors import ServeError


def post(url: str, body: dict[str, Any], *, api_key: str | None, seconds: float = 300.0) -> dict[str, Any]:
    """The JSON object that ``url`` answers to ``body`` with.

    Raises:
        ServeError: it cannot be reached, refuses, or answers with something else.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as refusal:
        words = " ".join(refusal.read().decode(errors="replace").split())[:300]
        fix = _FIXES.get(refusal.code, "Look into the endpoint's own log.")
        raise ServeError(f"{url} answers {refusal.code}: {words or refusal.reason}", fix=fix) from None
    except (OSError, http.client.HTTPException, ValueError) as cause:
        raise ServeError(
            f"{url} does not answer: {cause}.", fix="Is the endpoint running? Start it with `adaptft serve`."
        ) from cause
    if not isinstance(found, dict):
        raise ServeError(f"{url} answers with no JSON object.", fix="Give the address of an OpenAI-compatible server.")
    return found


_FIXES = {
    401: "Give the endpoint's key: --api_key KEY, or ADAPTFT_API_KEY in the environment.",
    404: "Check the served name and the port; token ids need /tokenize (vLLM, or adaptft's own server).",
}
