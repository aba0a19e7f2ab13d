"""`python -m tests.integration.quick_lead python -m MODULE ...`: a server whose lead expires within two seconds."""

import runpy
import sys

from fedlens_server.store import lead

if __name__ == "__main__":
    lead.EXPIRES_S, lead.CERTAIN_S, lead.RENEW_EVERY_S, lead.LOOK_EVERY_S = 1.5, 1.2, 0.2, 0.1
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
