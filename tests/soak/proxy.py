"""A network that can be cut: toxiproxy between the broker and the job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

from tests.support.process import Child, free_port, listening
from tests.support.spark import ROOT

SERVER = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
FOLDER = ROOT / ".tools" / "toxiproxy"


class Proxy:
    """Forwards one port to another; `cut` ends the connections and refuses new ones."""

    def __init__(self, port: int, upstream: int, log: Path) -> None:
        self._api = free_port()
        command = [str(FOLDER / "server"), "-host", "127.0.0.1", "-port", str(self._api)]
        self._child = Child(command, log=log)
        while not listening(self._api):
            if not self._child.running:
                raise RuntimeError(f"toxiproxy did not start: {log.read_text()}")
        ends = {"listen": f"127.0.0.1:{port}", "upstream": f"127.0.0.1:{upstream}"}
        self._post("/proxies", {"name": "kafka", "enabled": True, **ends})

    def cut(self) -> None:
        """End every connection, and take no other."""
        self._post("/proxies/kafka", {"enabled": False})

    def mend(self) -> None:
        """Let connections through again."""
        self._post("/proxies/kafka", {"enabled": True})

    def close(self) -> None:
        """End the process."""
        self._child.end()

    def _post(self, path: str, document: object) -> None:
        url = f"http://127.0.0.1:{self._api}{path}"
        request = urllib.request.Request(url, json.dumps(document).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:  # loopback
            answer.read()


def installed() -> bool:
    """Whether there is a toxiproxy, built where Go is present."""
    go = shutil.which("go")
    if (FOLDER / "server").exists():
        return True
    if go is None:
        return False
    FOLDER.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "GOBIN": str(FOLDER)}
    built = subprocess.run([go, "install", SERVER], env=env, check=False, capture_output=True)
    return built.returncode == 0
