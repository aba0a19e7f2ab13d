"""`python -m fedlens.demo.leash ARGUMENTS`: the `fedlens` command in a process that ends with the one that started it.

The starter holds the other end of standard input and never writes to it; when it dies, however it dies, the input ends.
"""

import os
import signal
import sys
import threading

GRACE_S = 5.0


def main() -> None:
    """Run the command."""
    threading.Thread(target=_watch, name="leash", daemon=True).start()
    from fedlens.cli import app

    app(sys.argv[1:])


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
