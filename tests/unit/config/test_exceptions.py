"""Exception names of the program that runs."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
print("started")

class Unpriced(Exception):
    pass

if __name__ == "__main__":
    from sparkguard.config.exceptions import exception_name

    for name in ("Unpriced", "__main__.Unpriced", "pipeline.Unpriced"):
        print(exception_name(name))
"""


def test_program_is_not_run_twice(tmp_path: Path) -> None:
    """A class of the running program is found under any of its names, without a second import."""
    (tmp_path / "pipeline.py").write_text(PROGRAM)
    root = Path(__file__).parents[3]
    for arguments in (["pipeline.py"], ["-m", "pipeline"]):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.split() == ["started"] + ["__main__.Unpriced"] * 3
