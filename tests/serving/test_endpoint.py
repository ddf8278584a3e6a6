"""The life of an endpoint, with a real HTTP server as the engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from local_servers import free_port

from adaptft.errors import MissingPackage, ServeError
from adaptft.plans import ServePlan
from adaptft.requests import ServeRequest
from adaptft.serving.endpoint import base_url, running, serve

SERVER = str(Path(__file__).with_name("small_server.py"))


@pytest.fixture
def plan(serve_plan: ServePlan) -> ServePlan:
    return replace(serve_plan, request=ServeRequest(model="m", port=free_port()), served_model_name="m")


def command(plan: ServePlan, *options: str, name: str = "m") -> list[str]:
    return [sys.executable, SERVER, str(plan.request.port), name, *options]


def is_alive(pid: int) -> bool:
    """False for a process that has ended, also where nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def test_it_is_ready_only_once_models_answers_with_the_served_name(plan: ServePlan) -> None:
    lines: list[str] = []
    started = time.monotonic()
    with running(plan, log=lines.append, command=command(plan, "--after", "1")) as endpoint:
        assert time.monotonic() - started >= 1
        assert endpoint.models == ("m",)
        with urllib.request.urlopen(f"{endpoint.url}/models") as answer:
            assert json.load(answer)["data"] == [{"id": "m"}]
    assert endpoint.child.exit_code == 0
    assert lines[:2] == ["loading", "listening"]
    assert lines[-1] == "drained"


def test_the_key_is_sent_when_asking_whether_it_is_ready(plan: ServePlan) -> None:
    with running(plan, api_key="secret", command=command(plan, "--key", "secret")) as endpoint:
        assert endpoint.models == ("m",)


def test_an_engine_that_fails_is_reported_with_the_line_that_names_its_error(plan: ServePlan) -> None:
    failing = command(plan, "--fail", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(ServeError) as failure, running(plan, command=failing):
        pass
    assert "exit code 3" in failure.value.problem
    assert "CUDA out of memory. Tried" in failure.value.problem
    assert "--max_model_len" in failure.value.fix
    assert len(str(failure.value).splitlines()) == 2


def test_an_engine_that_does_not_answer_in_time_is_ended(plan: ServePlan) -> None:
    with (
        pytest.raises(ServeError, match=r"did not answer .*/v1/models within 1.0 s; its last line: loading"),
        running(plan, start_seconds=1, command=command(plan, "--after", "60")),
    ):
        pass


def test_another_server_under_another_name_is_not_taken_for_ready(plan: ServePlan) -> None:
    other = command(plan, name="other")
    with pytest.raises(ServeError, match="did not answer"), running(plan, start_seconds=2, command=other):
        pass


def test_a_taken_port_is_refused_before_anything_starts(plan: ServePlan, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", plan.request.port))
        taken.listen()
        started = command(plan, "--worker", str(tmp_path / "pid"))
        with pytest.raises(ServeError, match="Address already in use") as refusal, running(plan, command=started):
            pass
    assert "--port" in refusal.value.fix
    assert not (tmp_path / "pid").exists()


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_a_host_that_is_not_this_machine_is_refused(plan: ServePlan, host: str) -> None:
    elsewhere = replace(plan, request=replace(plan.request, host=host))
    with (
        pytest.raises(ServeError, match=f"Cannot serve on {host}") as refusal,
        running(elsewhere, command=command(plan)),
    ):
        pass
    assert "--host 127.0.0.1" in refusal.value.fix


def test_an_interpreter_that_does_not_exist_is_refused(plan: ServePlan) -> None:
    with pytest.raises(MissingPackage, match="Cannot run /no/python"), running(plan, command=["/no/python"]):
        pass


def test_workers_of_the_engine_end_with_it(plan: ServePlan, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with running(plan, command=command(plan, "--worker", str(pid_file))):
        worker = int(pid_file.read_text())
        assert is_alive(worker)
    assert eventually(lambda: not is_alive(worker))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_an_engine_does_not_outlive_a_killed_adaptft(plan: ServePlan, tmp_path: Path) -> None:
    script = (
        "import os, sys; from adaptft.serving.child import Child\n"
        "child = Child(sys.argv[1:], os.environ, lambda line: print(line, child._process.pid, flush=True))\n"
        "child.wait(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *command(plan)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    engine = int(parent.stdout.readline().split()[-1])
    assert is_alive(engine)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not is_alive(engine))
    parent.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_answer_in_progress_finish_and_ends_the_engine(plan: ServePlan, number: int) -> None:
    lines: list[str] = []
    answers: list[int] = []

    def ask_then_signal() -> None:
        url = f"http://127.0.0.1:{plan.request.port}/slow"
        asking = threading.Thread(target=lambda: answers.append(urllib.request.urlopen(url, timeout=90).status))
        asking.start()
        eventually(lambda: "answering" in lines, seconds=60)
        os.kill(os.getpid(), number)
        asking.join()

    serve(
        plan,
        on_ready=lambda endpoint: threading.Thread(target=ask_then_signal).start(),
        log=lines.append,
        command=command(plan),
    )
    assert eventually(lambda: answers == [200])  # the client's thread may be a moment behind
    assert lines[-2:] == ["drained", "vLLM has ended."]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_engine_that_dies_while_it_serves_is_noticed(plan: ServePlan) -> None:
    ready: list[str] = []
    with pytest.raises(ServeError, match=r"vLLM ended by itself \(exit code 7\)"):
        serve(
            plan,
            on_ready=lambda endpoint: ready.append(endpoint.url),
            log=lambda line: None,
            command=command(plan, "--die", "1"),
        )
    assert ready == [base_url("127.0.0.1", plan.request.port)]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/v1"),
        ("0.0.0.0", "http://127.0.0.1:8000/v1"),
        ("::1", "http://[::1]:8000/v1"),
    ],
)
def test_the_address_is_one_that_a_client_here_can_use(host: str, url: str) -> None:
    assert base_url(host, 8000) == url
