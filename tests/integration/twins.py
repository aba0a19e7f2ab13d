"""Two servers of one database and one bucket, as processes that can be frozen and killed."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from sqlalchemy import URL

from fedlens_server.engine.operators.tokens import hashed
from fedlens_server.init import CONFIG, DATA, PROFILE, make_data
from fedlens_server.store import StateAddress
from tests.integration.processes import ServerProcess, free_ports
from tests.server.http.running import ADMIN_TOKEN

_ANNOUNCED = re.compile(r"(ready|standby), .*operators at (\S+)")
_LAUNCHER = (sys.executable, "-m", "tests.integration.quick_lead")


class Twin(ServerProcess):
    """One of two servers; `start` returns when it is ready, or a standby.

    Attributes:
        leads: True once it was ready.
    """

    leads = False

    @classmethod
    def of(cls, state: StateAddress, folder: Path, launcher: tuple[str, ...] = _LAUNCHER) -> Self:
        """The first server of a new state, not started, without TLS; by default with a lead that expires soon."""
        made = cls.prepared(folder)
        shutil.rmtree(folder / DATA)
        make_data(state, {role: made.token(role) for role in ("trainer", "evaluator")})
        config = (folder / CONFIG).read_text(encoding="utf-8")
        config = config.replace(hashed(made.token("admin")), hashed(ADMIN_TOKEN))
        config = config.replace('certfile = "server.pem"\nkeyfile = "server.key"\n', "")
        places = f'database = "{state.database}"\nblobs = "{state.bucket}"\n[admin]\n'
        (folder / CONFIG).write_text(config.replace("[admin]\n", places), encoding="utf-8")
        (folder / "admin.token").write_text(ADMIN_TOKEN, encoding="utf-8")
        profile = folder / PROFILE
        profile.write_text(profile.read_text(encoding="utf-8").replace("https:", "http:"), encoding="utf-8")
        made.launcher = launcher
        return made

    def twin(self, folder: Path, *, port: int | None = None, database: URL | None = None) -> Self:
        """Another server of the same state, not started; clients reach it at the same port, or another."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns(DATA, "*.log"))
        (admin_port,) = free_ports(1)
        text = (folder / CONFIG).read_text(encoding="utf-8")
        own_admin, own_port = re.findall(r"^port = (\d+)$", text, re.MULTILINE)[::-1]
        text = text.replace(f"port = {own_admin}", f"port = {admin_port}")
        text = text if port is None else text.replace(f"port = {own_port}", f"port = {port}")
        if database is not None:
            text = re.sub("(?<=^database = ).*$", f'"{database}"', text, flags=re.MULTILINE)
        (folder / CONFIG).write_text(text, encoding="utf-8")
        profile = folder / PROFILE
        profile.write_text(profile.read_text(encoding="utf-8").replace(own_admin, str(admin_port)), encoding="utf-8")
        made = type(self)(folder)
        made.launcher = self.launcher
        return made

    def start(self) -> None:
        """Start it; return when it is ready, or a standby."""
        self.leads = False
        super().start()

    def freeze(self) -> None:
        """Stop all of its threads, in the middle of whatever they do."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let them go on."""
        os.kill(self.pid, signal.SIGCONT)

    def until_it_leads(self) -> None:
        """Return when it is ready."""
        if not self.leads:
            assert self._process is not None
            self.url, self._admin_url = super()._wait_until_ready(self._process)
            self.leads = True

    def has_announced(self) -> bool:
        """True if it leads, or `until_it_leads` would read a line at once."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self.leads or bool(select.select([self._process.stdout], [], [], 0)[0])

    def ended(self) -> tuple[int, str]:
        """Its exit status, once it has ended by itself, and the end of its log."""
        assert self._process is not None
        status = self._process.wait(60)
        log = self._end_of_log()
        self.kill()
        return status, log

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> tuple[str, str]:
        found = self._wait_for(process, _ANNOUNCED)
        self.leads = found[1] == "ready"
        address = re.search(r"clients at (\S+),", found.string)
        return address[1] if address else "", found[2]
