"""Real clients against our API, each in its own interpreter, since they are heavy and disagree.

python -m tests.clients.check_clients PYTHON SCRIPT...: runs each script of this folder with PYTHON
(or `node`), and the address of a server as its argument. Exit code 0 where all of them succeed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.clients.serve_fake import serve

FOLDER = Path(__file__).parent
TIMEOUT_S = 180


def main(interpreter: str, *scripts: str) -> int:
    """Run, and return the exit code."""
    failed = []
    with serve() as address:
        for script in scripts:
            done = subprocess.run(
                [interpreter, str(FOLDER / script), address], check=False, timeout=TIMEOUT_S
            )
            sys.stdout.write(f"{script}: {'failed' if done.returncode else 'ok'}\n")
            sys.stdout.flush()
            failed += [script] if done.returncode else []
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
