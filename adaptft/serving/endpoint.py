"""The life of an endpoint: start, ready when /v1/models names the model, end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from adaptft.errors import ServeError
from adaptft.plans import ServePlan
from adaptft.policy.engines import SERVER_NAME
from adaptft.serving.child import Child, check_port
from adaptft.serving.commands import DRAIN_SECONDS, child_environment, serve_command
from adaptft.units import format_seconds

START_SECONDS = 1800.0
POLL_SECONDS = 0.5
PROGRESS_SECONDS = 15.0
OWNER = "adaptft"
"""Whose models /v1/models of the transformers engine says they are; vLLM's are vLLM's."""
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running endpoint; ``url`` is what OpenAI clients call the base URL."""

    url: str
    models: tuple[str, ...]
    child: Child
    seconds_to_start: float


@contextmanager
def running(
    plan: ServePlan,
    *,
    api_key: str | None = None,
    log: Callable[[str], None] = lambda line: None,
    start_seconds: float = START_SECONDS,
    command: list[str] | None = None,
) -> Iterator[Endpoint]:
    """Start ``plan``'s engine, give the endpoint once it answers, and end it with the ``with`` block.

    Args:
        log: gets the engine's lines and a line of progress now and then.
        command: started in place of the plan's own.

    Raises:
        ServeError: the port is taken, or the engine ended or did not answer within ``start_seconds``.
    """
    check_port(plan.request.host, plan.request.port)
    environment = child_environment(plan, os.environ, api_key=api_key)
    child = Child(command or serve_command(plan), environment, log)
    try:
        yield _wait_until_ready(plan, child, api_key, log, start_seconds)
    finally:
        child.stop(DRAIN_SECONDS)


def serve(
    plan: ServePlan,
    *,
    api_key: str | None = None,
    on_ready: Callable[[Endpoint], None],
    log: Callable[[str], None],
    start_seconds: float = START_SECONDS,
    command: list[str] | None = None,
) -> None:
    """Run the endpoint until SIGINT or SIGTERM; returns once it has ended cleanly.

    A second signal cuts the wait for answers in progress short.

    Raises:
        ServeError: as ``running`` does, and where the engine dies later.
    """
    name = SERVER_NAME[plan.backend]
    try:
        with (
            _signals_as_interrupts(),
            running(plan, api_key=api_key, log=log, start_seconds=start_seconds, command=command) as endpoint,
        ):
            on_ready(endpoint)
            while endpoint.child.exit_code is None:
                endpoint.child.wait(seconds=1.0)
            raise endpoint.child.failure(name)
    except KeyboardInterrupt:
        log(f"{name} has ended.")


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """SIGTERM ends a server as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_until_ready(
    plan: ServePlan, child: Child, api_key: str | None, log: Callable[[str], None], start_seconds: float
) -> Endpoint:
    name, url, started = SERVER_NAME[plan.backend], base_url(plan.request.host, plan.request.port), time.monotonic()
    next_progress = PROGRESS_SECONDS
    while True:
        if child.exit_code is not None:
            raise child.failure(f"{name} did not start; it")
        models = served_models(url, api_key)
        passed = time.monotonic() - started
        if models is not None and plan.served_model_name in models:
            named = sorted(models, key=lambda name: name not in plan.adapters)  # what was trained comes first
            return Endpoint(url=url, models=tuple(named), child=child, seconds_to_start=passed)
        if passed > start_seconds:
            raise ServeError(
                f"{name} did not answer {url}/models within {format_seconds(start_seconds)}; "
                f"its last line: {child.telling_line()}",
                fix="See its log above; a smaller model or --max_model_len loads faster.",
            )
        if passed > next_progress:
            log(f"{name} is starting: {format_seconds(passed)}")
            next_progress += PROGRESS_SECONDS
        child.wait(seconds=POLL_SECONDS)


def base_url(host: str, port: int) -> str:
    """``http://host:port/v1``; an address that means every interface is reached through the loopback one."""
    name = ANY_ADDRESS.get(host, host)
    return f"http://[{name}]:{port}/v1" if ":" in name else f"http://{name}:{port}/v1"


def served_models(url: str, api_key: str | None) -> dict[str, str] | None:
    """Names that /v1/models gives, and who it says owns them (the engine); None while it does not answer."""
    request = urllib.request.Request(f"{url}/models")
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            return {str(model["id"]): str(model.get("owned_by")) for model in json.load(answer)["data"]}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return None
