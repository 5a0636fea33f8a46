"""Waits for a starting Ember server, then loads its page with everything that the page names.

    python3 .ci/check_server.py URL PID SECONDS

Ends with an error if process PID ends first, or if SECONDS pass before /readyz answers 200.
"""

from __future__ import annotations

import os
import re
import sys
import time
import urllib.parse
import urllib.request

REFERENCE = re.compile(r"""(?:src|href)="([^"#:]+)"|(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")


def get(url: str) -> str:
    """The body of a 200 answer; URLError for anything else."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body.decode("utf-8", errors="replace")


def is_running(pid: int) -> bool:
    """Whether the process still exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_ready(url: str, pid: int, limit_s: float) -> None:
    """Return once /readyz answers 200; SystemExit if it never does."""
    start = time.monotonic()
    while time.monotonic() - start < limit_s:
        if not is_running(pid):
            raise SystemExit("the server ended before it was ready")
        try:
            get(url + "/readyz")
        except OSError:  # refused, or 503 while the models load
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"{url}/readyz did not answer 200 within {limit_s:.0f} s")


def load_page(url: str) -> int:
    """Fetch the page and all that it and its modules name; return how many files that was."""
    seen: set[str] = set()
    wanted = [url + "/"]
    while wanted:
        address = wanted.pop()
        if address in seen:
            continue
        seen.add(address)
        text = get(address)
        wanted += [
            urllib.parse.urljoin(address, "".join(names)) for names in REFERENCE.findall(text)
        ]
    if len(seen) < 2:
        raise SystemExit(f"{url}/ names no script and no style: is the page in the package?")
    return len(seen)


def main(url: str, pid: str, limit_s: str) -> None:
    """Run the checks."""
    wait_until_ready(url, int(pid), float(limit_s))
    sys.stdout.write(f"{url} is ready and served {load_page(url)} files of its page\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
