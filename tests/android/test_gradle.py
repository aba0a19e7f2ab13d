"""Gradle's files, which are not run here, name what Maven builds with."""

import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
ANDROID = REPOSITORY / "android_demo"
CATALOGUE = tomllib.loads((ANDROID / "gradle" / "libs.versions.toml").read_text(encoding="utf-8"))
POM = {"m": "http://maven.apache.org/POM/4.0.0"}


def test_gradle_and_maven_build_with_one_version() -> None:
    root = ElementTree.parse(ANDROID / "pom.xml")
    tools = ("kotlin", "coroutines", "okhttp", "protobuf", "executorch", "zxing")
    of_maven = {tool: root.findtext(f"m:properties/m:{tool}.version", namespaces=POM) for tool in tools}
    of_maven["fedlens"] = root.findtext("m:version", namespaces=POM)
    for library in root.findall("m:dependencyManagement/m:dependencies/m:dependency", POM):
        name, version = (library.findtext(f"m:{key}", namespaces=POM) for key in ("artifactId", "version"))
        if name in ("junit", "gson"):
            of_maven[name] = version

    assert None not in of_maven.values()
    assert CATALOGUE["versions"] == CATALOGUE["versions"] | of_maven


def test_apps_get_the_release_of_executorch_that_lowers_their_programs() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert f"executorch=={CATALOGUE['versions']['executorch']}" in extras["optional-dependencies"]["export"]


def test_the_least_android_is_the_one_whose_calls_are_checked() -> None:
    for module in ("sdk", "app"):
        signature = f"gummy-bears-api-{CATALOGUE['versions']['min-sdk']}<"
        assert signature in (ANDROID / module / "pom.xml").read_text(encoding="utf-8"), module


def test_manifests_leave_to_gradle_what_it_warns_of_and_maven_adds_the_same() -> None:
    versions = CATALOGUE["versions"]
    built = (ANDROID / "app" / "pom.xml").read_text(encoding="utf-8").replace("&quot;", '"')

    for module in ("sdk", "app", "example"):
        manifest = (ANDROID / module / "src" / "main" / "AndroidManifest.xml").read_text(encoding="utf-8")
        for word in ("package=", "versionCode", "versionName", "uses-sdk", "extractNativeLibs"):
            assert word not in manifest, (module, word)
    assert f'minSdkVersion="{versions["min-sdk"]}" android:targetSdkVersion="{versions["compile-sdk"]}"' in built


def test_every_library_of_the_catalogue_is_of_a_version_in_it() -> None:
    entries = [*CATALOGUE["libraries"].values(), *CATALOGUE["plugins"].values()]

    assert {entry["version"]["ref"] for entry in entries} <= set(CATALOGUE["versions"])


@pytest.mark.parametrize("module", ["sdk", "app"])
def test_gradle_takes_what_the_catalogue_has_and_leaves_the_tests_to_maven(module: str) -> None:
    script = (ANDROID / module / "build.gradle.kts").read_text(encoding="utf-8")
    kinds = {"versions.": "versions", "plugins.": "plugins", "": "libraries"}
    named = {f"{kind}{name}".replace("-", ".") for kind, table in kinds.items() for name in CATALOGUE[table]}

    taken = set(re.findall(r"libs\.((?:versions\.|plugins\.|)[a-z.]+?)(?:\.get\(\)|\))", script))

    assert taken
    assert taken <= named
    assert "hostTests[HostTestBuilder.UNIT_TEST_TYPE]?.enable = false" in script
    assert "testImplementation" not in script


def test_gradle_is_of_a_version_that_its_android_plugin_works_with() -> None:
    wrapper = (ANDROID / "gradle" / "wrapper" / "gradle-wrapper.properties").read_text(encoding="utf-8")
    readme = (ANDROID / "README.md").read_text(encoding="utf-8")

    (version,) = re.findall(r"/gradle-([\d.]+)-bin\.zip$", wrapper, re.MULTILINE)

    assert f"need Gradle {version} or newer" in readme.replace("\n", " ")


def test_what_gradle_runs_on_a_device_is_there() -> None:
    script = (ANDROID / "sdk" / "build.gradle.kts").read_text(encoding="utf-8")

    (runner,) = re.findall(r'testInstrumentationRunner = "([\w.]+)"', script)
    folders = re.findall(r'(?:assets|kotlin)\.srcDir\("(.+?)"\)', script)

    assert (ANDROID / "sdk/src/androidTest/kotlin" / f"{runner.replace('.', '/')}.kt").is_file()
    assert len(folders) == 2
    assert all((ANDROID / "sdk" / folder).is_dir() for folder in folders)


def test_every_module_that_gradle_includes_is_one_of_mavens() -> None:
    settings = (ANDROID / "settings.gradle.kts").read_text(encoding="utf-8")
    modules = {module.text for module in ElementTree.parse(ANDROID / "pom.xml").findall("m:modules/m:module", POM)}

    included = set(re.findall(r'":(\w+)"', settings))

    assert included == {"sdk", "app"}
    assert included <= modules
