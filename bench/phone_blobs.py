"""Blobs on a JVM: encoding the tensors of a 44.7 MB model into a file, checking that file and reading it back.

A program of the SDK's test tree does it (`BlobTimes.kt`). Floor: two SHA-256 of the blob, which encoding and decoding
each have to compute, in the same turns, in processor time. Heap: the least in which a turn runs, found by bisection,
less the 44.7 MB of tensors that lie in it throughout.
"""

import subprocess
from pathlib import Path

from bench import maven, models
from bench.row import Row, Sample, against_floor

MAIN = "org.fedlens.sdk.blob.BlobTimesKt"
TURNS = 15
MOST_TIMES = 1.8
MOST_HEAP_MB = 8.0
# In MiB, as `-Xmx` counts: enough for anything, and how finely it is looked for.
AMPLE_MIB, FINE_MIB = 128.0, 0.25
YOUNG_MIB = 1


def measure(folder: Path) -> list[Row]:
    """Time against two digests, and heap beyond the tensors."""
    maven.build()
    (blob,) = models.write_blobs(models.resnet18(), folder / "blobs", 1)
    command = ["-cp", maven.class_path("sdk", tests=True), MAIN, str(blob), str(folder)]
    found = [line.split() for line in maven.java(["-Xms256m", *command, str(TURNS)]).splitlines()]
    times = {name: Sample(tuple(map(float, values))) for name, _, *values in found}
    allocated = {name: int(count) for name, count, *_ in found}
    others = ", ".join(f"{name} {times[name].median / times['copy'].median:.1f}x" for name in ("float16", "int8"))
    name = "encode + decode of a 44.7 MB blob, JVM"
    return [
        against_floor(
            f"{name}, f32",
            Sample(tuple(2 * value for value in times["sha256"].values)),
            times["float32"],
            MOST_TIMES,
            "two SHA-256 of it",
            note=f"a copy of the file takes {times['copy'].text(1)} ms; {others} such a copy",
        ),
        _heap(f"{name}: heap beyond the tensors", command, blob.stat().st_size / 1e6, allocated["float32"]),
    ]


def _heap(measure: str, command: list[str], tensors_mb: float, allocated: int) -> Row:
    enough, too_little = AMPLE_MIB, tensors_mb * 1e6 / 2**20
    while enough - too_little > FINE_MIB:
        middle = (enough + too_little) / 2
        if _runs_in(middle, command):
            enough = middle
        else:
            too_little = middle
    beyond = enough * 2**20 / 1e6 - tensors_mb
    return Row(
        measure=measure,
        unit="MB",
        digits=1,
        floor=Sample((tensors_mb,)),
        floor_is="the tensors",
        measured=Sample((tensors_mb + beyond,)),
        judged=beyond,
        judged_text=f"{beyond:.1f} MB beyond",
        target=MOST_HEAP_MB,
        target_text=f"<= {MOST_HEAP_MB:g} MB beyond",
        note=f"the least -Xmx in which it runs, to {FINE_MIB} MiB, JVM included; all objects of a turn together are"
        f" {allocated / 1e6:.1f} MB",
    )


def _runs_in(heap_mib: float, command: list[str]) -> bool:
    limits = [f"-Xmx{int(heap_mib * 1024)}k", f"-Xmn{YOUNG_MIB}m", "-XX:+UseSerialGC"]
    return subprocess.run(["java", *limits, *command, "1"], capture_output=True).returncode == 0
