"""The whole way on a small model, by the commands that a person would type: plan, train, evaluate, export, serve, ask.

python examples/demo.py [--steps 24] [--output demo-output]
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MODEL = "smollm2-135m"
QUESTION = "A box holds 12 pens. Mia buys 3 boxes and gives away 9 pens. How many pens does she have left?"
READY_SECONDS = 180


def main() -> None:
    """Run every command in order; the first that fails ends the demo with its status."""
    options = read_options()
    run, export = options.output / "run", options.output / "export"
    report = options.output / "eval.json"
    start = time.monotonic()

    adaptft("probe")
    adaptft("plan", "--model", MODEL, "--train_type", "lora", "--max_steps", options.steps)
    adaptft(
        "train", "--model", MODEL, "--train_type", "lora", "--max_steps", options.steps, "--learning_rate", "1e-3",
        "--max_length", "512", "--global_batch_size", "2", "--packing", "true",
        "--split_dataset_ratio", "0.02", "--output_dir", run, "--overwrite_output_dir", "true",
    )  # fmt: skip
    adaptft(
        "export", "--format", options.format, "--adapters", run, "--output_dir", export,
        "--overwrite_output_dir", "true",
    )  # fmt: skip
    adaptft("eval", "--model", MODEL, "--adapters", run, "--exports", export, "--max_rows", "16", "--output", report)
    serve_and_ask(export)

    print(f"\nDone in {time.monotonic() - start:.0f} s.")
    print(f"The report of the run lies in {run / 'report.json'}, its plan in {run / 'plan.json'},")
    print(f"base against tuned against export in {report}.")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="24", help="optimizer steps (24)")
    parser.add_argument("--format", default="fp8", help="export format (fp8)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder of the results")
    return parser.parse_args()


def command(*words: object) -> list[str]:
    """Show a command as a person would type it; return it as this interpreter runs it."""
    shown = shlex.join(["adaptft", *map(str, words)])
    print(f"\n$ {shown}", flush=True)
    return [sys.executable, "-m", "adaptft", *map(str, words)]


def adaptft(*words: object) -> None:
    """Run one command to its end."""
    status = subprocess.run(command(*words), check=False).returncode
    if status:
        sys.exit(status)


def serve_and_ask(model: Path) -> None:
    """Serve ``model``, ask it one question through the openai client, and end the server as Ctrl-C would."""
    port = free_port()
    server = subprocess.Popen(
        command("serve", model, "--port", port, "--served_model_name", "demo"), start_new_session=True
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/v1/models", server)
        ask(port)
    finally:
        os.killpg(server.pid, signal.SIGINT)
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def ask(port: int) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    messages = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=96, temperature=0)
    print(f"\nQuestion: {QUESTION}\nAnswer:   {answer.choices[0].message.content}", flush=True)


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Return when ``url`` answers; end the demo where the server has ended or takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(server.returncode or 1)
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"{url} did not answer within {READY_SECONDS} s.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
