"""Keeping freed memory."""

import subprocess
import sys

import pytest

SCRIPT = """
import gc, resource
from fedlens_edge_client.engines.memory import keep_freed_memory
assert keep_freed_memory()
assert gc.get_threshold() == (10_000, 10, 10)
for turn in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        del (block := bytearray(50_000_000))[:]
        del block
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_blocks_are_used_again_without_page_faults() -> None:
    # 50 MB are 12,207 pages of 4 KiB; twenty blocks would cost 244,140 faults if each were given back.
    printed = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout

    first, second = map(int, printed.split())
    assert first < 2 * 12_207
    assert second < 12_207
