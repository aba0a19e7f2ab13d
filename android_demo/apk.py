#!/usr/bin/env python3
"""Package the app's debug APK from what Maven has built, and list its content.

    mvn package && python3 apk.py [--unsigned]

Writes `app/target/app-debug.apk`, without ExecuTorch's native runtime, and `app/target/app-debug.txt`, the list of its
files, which is also printed and checked: an unknown file is an error. Equal classes and resources give equal bytes; the
debug key for the signature is created if there is none.
"""

import argparse
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT = HERE / "app" / "target"
RESOURCES = BUILT / "resources.apk"
CLASS_PATH = BUILT / "classpath.txt"
TOOLS = HERE / "vendor" / "tools" / "target"
EXECUTORCH = HERE / "vendor" / "executorch-api" / "target"
KEYS = HERE / "target" / "debug.keystore"
PASSWORD = "android"  # of debug keys everywhere
MIN_SDK = 26
# The earliest time that a ZIP archive can store.
MOMENT = (1980, 1, 1, 0, 0, 0)
ALIGNMENT = 4
# The extra field that declares an entry's alignment: id, size, alignment, zeros.
ALIGNMENT_FIELD = 0xD935
LOCAL_HEADER_BYTES = 30

# Files that libraries need besides their classes. The rest of their archives is for compilers and people.
LIBRARY_FILES = re.compile(r"okhttp3/internal/publicsuffix/publicsuffixes\.gz|META-INF/services/[^/]+")
KNOWN = re.compile(
    rf"AndroidManifest\.xml|resources\.arsc|classes\d*\.dex|res/[\w.\-/]+\.(?:xml|png|webp)|{LIBRARY_FILES.pattern}"
)
# Markers in code or resources of test-only code, and of content that must not be shipped.
UNWANTED = {
    "JUnit": rb"Lorg/junit/",
    "Robolectric": rb"Lorg/robolectric/",
    "a server for tests": rb"Lokhttp3/mockwebserver/",
    "certificates for tests": rb"Lokhttp3/tls/",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a place on this machine": re.escape(str(HERE.parent).encode()) + rb"/",
}


class NotPackaged(Exception):
    """The APK cannot be packaged; the message names what is missing or does not belong into it."""


def main() -> None:
    """Package the APK and print its content."""
    parser = argparse.ArgumentParser(description="Make the app's debug APK from what Maven has built.")
    parser.add_argument("--unsigned", action="store_true", help="do not sign it: apksigner is not needed then")
    arguments = parser.parse_args()
    apk = BUILT / "app-debug.apk"
    try:
        files = contents(BUILT / "dex")
        check(files)
        write_archive(apk, files)
        if not arguments.unsigned:
            sign(apk)
    except NotPackaged as error:
        sys.exit(f"android_demo/apk.py: {error}")
    found = listing(apk)
    (BUILT / "app-debug.txt").write_text(found, encoding="utf-8")
    print(found, end="")


def contents(folder: Path) -> dict[str, bytes]:
    """The files of the APK by path: resources, classes compiled into `folder`, files of libraries."""
    for path in (RESOURCES, CLASS_PATH, TOOLS / "r8.path", TOOLS / "android.path"):
        if not path.is_file():
            raise NotPackaged(f"{path.relative_to(HERE)} is missing: run `mvn package` first")
    archives = archives_of("app")
    compile_classes(archives, folder)
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.dex"))}
    with zipfile.ZipFile(RESOURCES) as resources:
        files |= {name: resources.read(name) for name in resources.namelist()}
    return files | library_files(archives)


def library_files(archives: Sequence[Path]) -> dict[str, bytes]:
    """The files that these archives need besides their classes."""
    files: dict[str, bytes] = {}
    for archive in archives:
        with zipfile.ZipFile(archive) as library:
            files |= {name: library.read(name) for name in library.namelist() if LIBRARY_FILES.fullmatch(name)}
    return files


def archives_of(module: str) -> list[Path]:
    """The archive of a module's classes, and its runtime class path."""
    target = HERE / module / "target"
    others = (target / "classpath.txt").read_text(encoding="utf-8").strip().split(":")
    return [_only_archive(target, f"{module}-*.jar"), *map(Path, others)]


def compile_classes(archives: Sequence[Path], folder: Path, mode: str = "--debug") -> None:
    """Compile the classes of these archives for Android into `folder`, with D8."""
    _for_android("D8", [mode], archives, folder)


def shrink_classes(archives: Sequence[Path], folder: Path, rules: Sequence[Path], *, for_a_jvm: bool = False) -> None:
    """Compile what the rules keep of these archives' classes into `folder`, with R8 in full mode.

    ExecuTorch's classes are seen, not compiled. For a JVM `folder` is the path of a .jar. As in Gradle's builds, names
    and lines of the sources go into a map, `folder` with the suffix .map; without one, lines stay in the code.
    """
    options = ["--classpath", str(_only_archive(EXECUTORCH, "*.jar")), *(["--classfile"] if for_a_jvm else [])]
    options += ["--pg-map-output", str(folder.with_suffix(".map"))]
    for path in rules:
        options += ["--pg-conf", str(path)]
    _for_android("R8", options, archives, folder)


def _only_archive(folder: Path, pattern: str) -> Path:
    """The only file that matches; with several versions it is unclear which one belongs into the APK."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        place = folder.relative_to(HERE) if folder.is_relative_to(HERE) else folder
        raise NotPackaged(f"{place} must hold one {pattern}, found {names}: run `mvn clean package`")
    return found[0]


def _for_android(program: str, options: Sequence[str], archives: Sequence[Path], out: Path) -> None:
    if out.suffix != ".jar":
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
    r8, android = ((TOOLS / name).read_text(encoding="utf-8").strip() for name in ("r8.path", "android.path"))
    # Android's archive lacks the classes of java.*, which the JDK provides.
    java = Path(shutil.which("java") or "java").resolve()
    libraries = ["--lib", android, "--lib", str(java.parent.parent)]
    command = [str(java), "-Xmx2g", "-cp", r8, f"com.android.tools.r8.{program}", *libraries, *options]
    # Android does not use Java class files.
    command += [] if "--classfile" in options else ["--min-api", str(MIN_SDK)]
    done = subprocess.run([*command, "--output", str(out), *map(str, archives)], capture_output=True, text=True)
    # Multi-release archives contain files of the same name that no app needs.
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning") and "META-INF/" not in line]
    if done.returncode != 0 or warnings:
        raise NotPackaged(f"{program} cannot compile the classes, or warns:\n{done.stdout}{done.stderr}")


def check(files: Mapping[str, bytes]) -> None:
    """Refuse files that do not belong into the APK.

    Raises:
        NotPackaged: A native library, a file that nobody knows, test code, a secret, or a path of this machine.
    """
    wrong = [f"{name}: not known to belong into an APK" for name in sorted(files) if not KNOWN.fullmatch(name)]
    wrong += [
        f"{name}: holds {what}"
        for name, content in sorted(files.items())
        for what, pattern in UNWANTED.items()
        if re.search(pattern, content)
    ]
    if wrong:
        raise NotPackaged("\n  ".join(["these do not belong into the APK:", *wrong]))


def write_archive(apk: Path, files: Mapping[str, bytes]) -> None:
    """Write the files in a fixed order with a fixed time, and align uncompressed ones so that Android can map them."""
    with apk.open("wb") as out, zipfile.ZipFile(out, "w") as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, MOMENT)
            info.create_system = 0
            # Android 11 and later map this file, and refuse an app in which it is compressed.
            if name == "resources.arsc":
                start = out.tell() + LOCAL_HEADER_BYTES + len(name.encode()) + struct.calcsize("<HHH")
                zeros = bytes(-start % ALIGNMENT)
                info.extra = struct.pack("<HHH", ALIGNMENT_FIELD, 2 + len(zeros), ALIGNMENT) + zeros
            else:
                info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name], compresslevel=9)


def sign(apk: Path) -> None:
    """Sign with the debug key, which is created if necessary."""
    if shutil.which("apksigner") is None:
        raise NotPackaged("no apksigner: install it (Debian: `apt install apksigner`), or give --unsigned")
    KEYS.parent.mkdir(exist_ok=True)
    access = ["-keystore", str(KEYS), "-storepass", PASSWORD, "-alias", "debug"]
    if not KEYS.exists():
        made = ["-genkeypair", "-keyalg", "RSA", "-keysize", "2048", "-validity", "10000", "-dname", "CN=Debug"]
        subprocess.run(["keytool", *made, *access, "-storetype", "PKCS12"], check=True, capture_output=True)
    given = ["--ks", str(KEYS), "--ks-pass", f"pass:{PASSWORD}", "--min-sdk-version", str(MIN_SDK)]
    # The first scheme is for Android versions below this app's minimum.
    given += ["--v1-signing-enabled", "false"]
    for command in (["sign", *given, str(apk)], ["verify", "--min-sdk-version", str(MIN_SDK), str(apk)]):
        done = subprocess.run(["apksigner", *command], capture_output=True, text=True)
        if done.returncode != 0:
            raise NotPackaged(f"apksigner {command[0]}: {done.stdout}{done.stderr}")
    apk.with_name(apk.name + ".idsig").unlink(missing_ok=True)


def listing(apk: Path) -> str:
    """One line per file, largest first: size, size in the APK, path; totals at the end."""
    with zipfile.ZipFile(apk) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: (-entry.compress_size, entry.filename))
    rows = [(entry.file_size, entry.compress_size, entry.filename) for entry in entries]
    rows.append((sum(row[0] for row in rows), sum(row[1] for row in rows), f"{len(rows)} files"))
    lines = [f"{size:>10} {packed:>10}  {name}" for size, packed, name in rows]
    return "\n".join([f"{'bytes':>10} {'in APK':>10}  file", *lines, f"{apk.stat().st_size:>21}  {apk.name}", ""])


if __name__ == "__main__":
    main()
