"""The size that the SDK adds to an APK: the app of `docs/android.md`, against an app of one empty Activity.

Both are compiled by R8 in full mode and packed alike, so what is counted is code of the SDK, OkHttp, protobuf,
coroutines and Kotlin's library that the app can reach, compressed, and the files that these libraries need.
ExecuTorch's Java classes and native runtime come on top.
"""

import subprocess
from pathlib import Path

from android_demo import apk
from bench import maven
from bench.row import Row, Sample

MOST_KB = 500.0
EMPTY = "package empty; public final class Main extends android.app.Activity {}\n"
KEPT = """\
-keep public class * extends android.app.Activity
-keep public class * extends android.app.Application
-keep public class * extends android.app.Service
"""


def measure(folder: Path) -> list[Row]:
    """Shrunk, with what it is without shrinking as a note."""
    android = maven.build()
    rules = folder / "kept.pro"
    rules.write_text(KEPT)
    least = _least_app(folder)
    archives = apk.archives_of("example")
    apk.shrink_classes([least], folder / "least", [rules])
    apk.shrink_classes(archives, folder / "shrunk", [rules, android / "sdk" / "consumer-rules.pro"])
    apk.compile_classes(archives, folder / "whole", "--release")
    empty = _packed_kb(folder / "least", [])
    shrunk = _packed_kb(folder / "shrunk", archives) - empty
    whole = _packed_kb(folder / "whole", archives) - empty
    return [
        Row(
            measure="SDK in an APK, without ExecuTorch, shrunk by R8",
            unit="KB",
            digits=0,
            floor=Sample((empty,)),
            floor_is="an app of one empty Activity, without resources",
            measured=Sample((empty + shrunk,)),
            judged=shrunk,
            judged_text=f"{shrunk:.0f} KB more",
            target=MOST_KB,
            target_text=f"<= {MOST_KB:g} KB more",
            note="compressed, with OkHttp, protobuf, coroutines and Kotlin's library;"
            f" {whole:.0f} KB more without shrinking",
        )
    ]


def _least_app(folder: Path) -> Path:
    (folder / "Main.java").write_text(EMPTY)
    android = (apk.TOOLS / "android.path").read_text(encoding="utf-8").strip()
    compiler = ["javac", "--release", "8", "-Xlint:-options", "-cp", android, "-d", str(folder / "empty")]
    subprocess.run([*compiler, str(folder / "Main.java")], check=True)
    jar = folder / "empty.jar"
    apk.write_archive(jar, {"empty/Main.class": (folder / "empty" / "empty" / "Main.class").read_bytes()})
    return jar


def _packed_kb(classes: Path, archives: list[Path]) -> float:
    files = {path.name: path.read_bytes() for path in classes.glob("*.dex")} | apk.library_files(archives)
    packed = classes.with_suffix(".apk")
    apk.write_archive(packed, files)
    return packed.stat().st_size / 1000
