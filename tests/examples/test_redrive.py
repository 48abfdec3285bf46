"""The ninth example, from the failure to the proof, with the commands that its text names."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.examples.conftest import Ids, RunExample
from tests.support.jars import connector_jars
from tests.support.kafka import Broker
from tests.support.spark import ROOT


def test_redrive(run_example: RunExample, broker: Broker, ids: Ids, tmp_path: Path) -> None:
    """P1: what had no rate is sent back once it has one, and every payment is booked once."""
    names = {"PAYMENTS": "payments", "AGAIN": "redrive", "DEAD": "dead"}
    env: dict[str, Any] = {
        variable: f"{name}-{uuid4().hex[:8]}" for variable, name in names.items()
    }
    env |= {"KAFKA": broker.servers, "KAFKA_JARS": ",".join(map(str, connector_jars()))}
    settings = str(ROOT / "examples/e09_redrive/guard.yaml")

    def sparkguard(*arguments: str) -> Any:
        command = [str(Path(sys.executable).with_name("sparkguard")), *arguments]
        ran = subprocess.run(
            [*command, "--config", settings, "--json"],
            env={**os.environ, **env, "OUT": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-2000:]
        return json.loads(ran.stdout)

    run_example("e09_redrive/fill.py", **env)
    printed = run_example("e09_redrive/pipeline.py", **env)
    assert "1000 in = 950 out + 50 dead-lettered" in printed
    (group,) = sparkguard("dlq", "ls")["groups"]
    assert (group["exception"], group["count"]) == ("KeyError", 50)

    assert sparkguard("dlq", "redrive", "--everything")["sent"] == 50
    printed = run_example("e09_redrive/pipeline.py", **env, CHF="1.07")
    assert "1050 in = 1000 out + 50 dead-lettered" in printed
    assert ids("out/*/*.parquet") == list(range(1000))

    where = ("--checkpoint", str(tmp_path / "checkpoint"))
    (redrive,) = sparkguard("dlq", "redrives", *where)["redrives"]
    assert (redrive["letters"], redrive["outcomes"]["resolved"]) == (50, 50)
    sparkguard("audit", *where, "--output", str(tmp_path / "out"))
