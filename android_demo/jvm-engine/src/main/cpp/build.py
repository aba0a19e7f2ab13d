"""Build the native library of `jvm-engine` against the Python package `executorch`.

    python build.py OUT_DIRECTORY INCLUDES_OF_THE_JDK

In OUT_DIRECTORY it leaves either `fedlens-executorch.so`, or `reason.txt` that says why there is none: no such package,
or no compiler. A source that does not compile is an error. What is there and newer stays as it is.
"""

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

SOURCE = Path(__file__).with_name("programs.cpp")
NAME, REASON = "fedlens-executorch.so", "reason.txt"


class Unavailable(Exception):
    """A requirement of the library's build is missing on this machine."""


def main(out: Path, jdk: Path) -> int:
    """Build the library; return the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    library, reason = out / NAME, out / REASON
    try:
        command = _command(library, jdk)
    except Unavailable as error:
        library.unlink(missing_ok=True)
        reason.write_text(f"{error}\n")
        print(f"ExecuTorch's runtime for the JVM is left out: {error}", file=sys.stderr)
        return 0
    reason.unlink(missing_ok=True)
    built_by = out / "command.txt"
    stamp = "\n".join(command)
    newest = max(SOURCE.stat().st_mtime, Path(__file__).stat().st_mtime)
    if library.exists() and library.stat().st_mtime > newest and built_by.exists() and built_by.read_text() == stamp:
        return 0
    status = subprocess.run(command, check=False).returncode
    if status:
        library.unlink(missing_ok=True)
        print(f"{SOURCE.name} cannot be compiled against {sys.executable}'s executorch", file=sys.stderr)
    else:
        built_by.write_text(stamp)
    return status


def _command(library: Path, jdk: Path) -> list[str]:
    try:
        package = distribution("executorch")
    except PackageNotFoundError:
        raise Unavailable(f"{sys.executable} has no package executorch") from None
    compiler = shutil.which("g++")
    if compiler is None:
        raise Unavailable("there is no g++")
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"it is built on Linux alone, this is {sys.platform}")
    if not (jdk / "jni.h").exists():
        raise Unavailable(f"{jdk} has no jni.h: the JDK is incomplete")
    root = Path(str(package.locate_file("executorch")))
    runtime = _only(root / "extension" / "pybindings", "_portable_lib*.so")
    quantised = _only(root / "kernels" / "quantized", "*quantized_ops_aot_lib*.so")
    logging = _only(root, "backends/qualcomm/**/libqnn_executorch_backend.so")
    torch = root.parent / "torch" / "lib"
    python = Path(sysconfig.get_config_var("LIBDIR")) / str(sysconfig.get_config_var("LDLIBRARY"))
    if python.suffix != ".so" or not python.exists():
        raise Unavailable(f"{sys.executable} is built without a shared libpython, which executorch's library needs")
    folders = [runtime.parent, quantised.parent, logging.parent, torch, python.parent]
    return [
        compiler,
        *("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
        f'-DFEDLENS_EXECUTORCH_VERSION="{package.version}"',
        "-DC10_USING_CUSTOM_GENERATED_MACROS",
        *(f"-isystem{folder}" for folder in _includes(root)),
        *(f"-isystem{folder}" for folder in (jdk, jdk / "linux")),
        # The only header of torch that executorch's headers need and the package lacks.
        *("-idirafter", str(root.parent / "torch" / "include")),
        str(SOURCE),
        *("-o", str(library)),
        # Kernels register themselves when loaded; no code here refers to them.
        "-Wl,--no-as-needed",
        *map(str, (python, runtime, quantised, logging)),
        "-Wl,--as-needed",
        *(f"-Wl,-rpath,{folder}" for folder in folders),
        # For indirect dependencies: the linker consults an rpath for them, but not a runpath.
        "-Wl,--disable-new-dtags",
        "-Wl,--allow-shlib-undefined",
        "-Wl,-z,nodelete",
    ]


def _includes(root: Path) -> list[Path]:
    include = root / "include"
    return [include, include / "executorch" / "runtime" / "core" / "portable_type" / "c10"]


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Unavailable(f"this version of executorch has {len(found)} files {pattern} where one is needed")
    return found[0]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
