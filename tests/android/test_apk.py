import os
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest

from android_demo import apk

ANDROID = "{http://schemas.android.com/apk/res/android}"
VECTORS = Path(__file__).parent.parent / "vectors"
FILES = {
    "AndroidManifest.xml": b"manifest",
    "classes.dex": b"dex\n039\0" + b"Landroid/app/Activity;" * 9,
    "res/drawable/icon.xml": b"icon",
    "resources.arsc": b"table" * 100,
}
built = pytest.mark.skipif(
    not (apk.HERE / "example" / "target" / "classpath.txt").is_file(), reason="`make android` has not been run"
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lib/arm64-v8a/libexecutorch.so", b"\x7fELF"),
        ("assets/server.token", b"secret"),
        ("debug.keystore", b"key"),
        ("META-INF/maven/org.fedlens/sdk/pom.xml", b"<project/>"),
        ("classes2.dex", b"dex\n039\0Lorg/junit/Test;"),
        ("classes2.dex", b"dex\n039\0Lokhttp3/mockwebserver/MockWebServer;"),
        ("res/raw/server.xml", b"-----BEGIN EC PRIVATE KEY-----"),
        ("res/raw/place.xml", str(apk.HERE / "app").encode()),
    ],
)
def test_what_does_not_belong_into_an_apk_is_refused_and_named(name: str, content: bytes) -> None:
    apk.check(FILES)

    with pytest.raises(apk.NotPackaged, match=name):
        apk.check({**FILES, name: content})


def test_equal_files_give_equal_bytes_whatever_their_order(tmp_path: Path) -> None:
    apk.write_archive(tmp_path / "a.apk", FILES)
    apk.write_archive(tmp_path / "b.apk", dict(reversed(FILES.items())))

    assert (tmp_path / "a.apk").read_bytes() == (tmp_path / "b.apk").read_bytes()
    assert files_of(tmp_path / "a.apk") == FILES


@pytest.mark.parametrize("length", range(1, 5))
def test_android_can_map_the_table_of_resources(tmp_path: Path, length: int) -> None:
    # The file before it has 1 to 4 characters, so that the table would begin at every remainder of 4.
    apk.write_archive(tmp_path / "a.apk", {"a" * length: b"", "resources.arsc": b"table"})

    raw = (tmp_path / "a.apk").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.apk") as archive:
        entry = archive.getinfo("resources.arsc")
    name_bytes, extra_bytes = struct.unpack_from("<HH", raw, entry.header_offset + 26)
    start = entry.header_offset + 30 + name_bytes + extra_bytes
    assert raw[start : start + 5] == b"table"
    assert start % 4 == 0


def test_the_list_names_each_file_with_both_sizes_and_the_sums(tmp_path: Path) -> None:
    apk.write_archive(tmp_path / "app.apk", {"classes.dex": b"0" * 1000, "resources.arsc": b"12345"})

    lines = apk.listing(tmp_path / "app.apk").splitlines()

    assert lines[0].split() == ["bytes", "in", "APK", "file"]
    assert ["5", "5", "resources.arsc"] in [line.split() for line in lines]
    assert any(line.split()[0] == "1000" and line.endswith("classes.dex") for line in lines)
    assert lines[-2].split()[0] == "1005" and lines[-2].endswith("2 files")
    assert lines[-1].split() == [str((tmp_path / "app.apk").stat().st_size), "app.apk"]


def test_a_missing_build_and_a_missing_signer_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apk, "RESOURCES", apk.HERE / "no such file")
    with pytest.raises(apk.NotPackaged, match="no such file is missing: run `mvn package`"):
        apk.contents(tmp_path)

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(apk.NotPackaged, match="apt install apksigner"):
        apk.sign(tmp_path / "app.apk")


@pytest.mark.parametrize(
    ("archives", "named"), [([], "none"), (["app-0.1.0.jar", "app-0.2.0.jar"], "app-0.1.0.jar, app-0.2.0.jar")]
)
def test_archives_of_no_version_or_of_two_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archives: list[str], named: str
) -> None:
    target = tmp_path / "app" / "target"
    target.mkdir(parents=True)
    for name in ["classpath.txt", *archives]:
        (target / name).touch()
    monkeypatch.setattr(apk, "HERE", tmp_path)

    with pytest.raises(apk.NotPackaged, match=rf"app/target must hold one app-\*\.jar, found {named}: run `mvn clean"):
        apk.archives_of("app")


@built
@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_guides_app_is_shrunk_without_a_warning_and_reads_and_writes_the_same_messages(tmp_path: Path) -> None:
    archives = apk.archives_of("example")
    tests = tmp_path / "reading.jar"
    folder = apk.HERE / "example" / "target" / "test-classes"
    apk.write_archive(tests, {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.class")})
    kept = tmp_path / "kept.pro"
    kept.write_text(
        "-keep class org.fedlens.example.ReadingKt { public static void main(java.lang.String[]); }\n"
        "-keep public class * extends android.app.Activity\n-keep public class * extends android.app.Service\n"
    )
    rules = [kept, apk.HERE / "sdk" / "consumer-rules.pro"]

    apk.shrink_classes([tests, *archives], tmp_path / "shrunk.jar", rules, for_a_jvm=True)

    whole = read_with([tests, *archives])
    assert len(whole.splitlines()) == 8 and "SLOT_KIND_WEIGHT" in whole
    assert read_with([tmp_path / "shrunk.jar"]) == whole
    assert (tmp_path / "shrunk.jar").stat().st_size < sum(path.stat().st_size for path in archives) / 2
    assert "org/fedlens/sdk/schedule/LearningService.class" in files_of(tmp_path / "shrunk.jar")


def test_programs_run_in_services_that_no_other_app_can_reach_and_the_first_is_isolated() -> None:
    sdk, app = (
        {
            entry.attrib[f"{ANDROID}name"]: entry.attrib
            for kind in ("service", "receiver")
            for entry in ElementTree.parse(path).iter(kind)
        }
        for path in (apk.HERE / module / "src" / "main" / "AndroidManifest.xml" for module in ("sdk", "app"))
    )

    isolated = sdk["org.fedlens.sdk.engine.child.IsolatedProgramService"]
    assert isolated[f"{ANDROID}isolatedProcess"] == "true"
    for name, attributes in sdk.items():
        assert attributes[f"{ANDROID}exported"] == "false"
        assert app[name] == attributes, "Gradle merges manifests, the build here does not"
    assert sdk.pop("org.fedlens.sdk.schedule.StopReceiver")
    learning = sdk.pop("org.fedlens.sdk.schedule.LearningService")
    assert learning[f"{ANDROID}permission"] == "android.permission.BIND_JOB_SERVICE"
    processes = [attributes[f"{ANDROID}process"] for attributes in sdk.values()]
    assert len(set(processes)) == 4, "programs of trainings and of predictions share no process"
    assert all(process.startswith(":fedlens") for process in processes), "AndroidPlatform looks for this"


@built
def test_the_aar_has_what_an_app_needs() -> None:
    (aar,) = (apk.HERE / "sdk" / "target").glob("sdk-*.aar")

    files = files_of(aar)

    assert {"AndroidManifest.xml", "R.txt", "classes.jar", "proguard.txt"} <= set(files)
    assert b'package="org.fedlens.sdk"' in files["AndroidManifest.xml"]
    assert b"android.permission.INTERNET" in files["AndroidManifest.xml"]
    assert files["proguard.txt"] == (apk.HERE / "sdk" / "consumer-rules.pro").read_bytes()


def read_with(archives: list[Path]) -> str:
    """The output of the program that reads messages with these classes."""
    java = shutil.which("java")
    assert java is not None
    command = [java, "-cp", os.pathsep.join(map(str, archives)), "org.fedlens.example.ReadingKt", str(VECTORS)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def files_of(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}
