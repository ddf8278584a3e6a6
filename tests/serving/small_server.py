"""A real HTTP server that speaks /v1/models, as a child for the tests of an endpoint's life.

small_server.py PORT NAME [--after SECONDS] [--key KEY] [--die SECONDS] [--fail TEXT] [--worker FILE]

An answer from /slow takes until the server is asked to end, and a little longer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("name")
parser.add_argument("--after", type=float, default=0)
parser.add_argument("--key")
parser.add_argument("--die", type=float)
parser.add_argument("--fail")
parser.add_argument("--worker", type=Path)
options = parser.parse_args()
asked_to_end = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if options.key and self.headers.get("Authorization") != f"Bearer {options.key}":
            self.send_error(401)
            return
        if self.path == "/slow":
            print("answering", flush=True)
            asked_to_end.wait(60)
            time.sleep(0.2)
        body = json.dumps({"object": "list", "data": [{"id": options.name}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


print("loading", flush=True)
if options.fail:
    print(f"Traceback (most recent call last):\n{options.fail}\nended", flush=True)
    sys.exit(3)
if options.worker:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    options.worker.write_text(str(worker.pid))
time.sleep(options.after)
server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
server.daemon_threads = False


def end(*_: object) -> None:
    asked_to_end.set()
    threading.Thread(target=server.shutdown).start()


signal.signal(signal.SIGTERM, end)
if options.die is not None:
    threading.Timer(options.die, lambda: os._exit(7)).start()
print("listening", flush=True)
server.serve_forever()
server.server_close()
print("drained", flush=True)
