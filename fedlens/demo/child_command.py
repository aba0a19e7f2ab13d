"""`python -m fedlens.demo.child_command ARGUMENTS`: the `fedlens` command in a process that ends with its parent.

The parent holds the other end of standard input and never writes to it. When the parent ends, even by SIGKILL, so does
the input.
"""

import os
import signal
import sys
import threading

GRACE_S = 5.0


def main() -> None:
    """Run the command."""
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    from fedlens.cli import app

    app(sys.argv[1:])


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
