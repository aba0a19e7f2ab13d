"""The SDK as strangers get it: an app outside the tree depends on what `make android-publish` has written."""

import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.android import guide

ANDROID = guide.REPOSITORY / "android_demo"
PUBLISHED = ANDROID / "target" / "repository"
POM = {"m": "http://maven.apache.org/POM/4.0.0"}
ROOT = ElementTree.parse(ANDROID / "pom.xml")
VERSION = str(ROOT.findtext("m:version", namespaces=POM))
FOLDER = PUBLISHED / "org" / "fedlens" / "sdk" / VERSION

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the SDK is not published: make android-publish")

# As docs/android.md has it, with what a build needs to compile it.
APP = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>com.example</groupId>
  <artifactId>app</artifactId>
  <version>1</version>
  <repositories>
    <repository>
      <id>fedlens</id>
      <url>{url}</url>
    </repository>
  </repositories>
  <dependencies>
    <dependency>
      <groupId>org.fedlens</groupId>
      <artifactId>sdk</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.robolectric</groupId>
      <artifactId>android-all</artifactId>
      <version>{android}</version>
      <scope>provided</scope>
    </dependency>
  </dependencies>
  <build>
    <sourceDirectory>kotlin</sourceDirectory>
    <plugins>
      <plugin>
        <groupId>org.jetbrains.kotlin</groupId>
        <artifactId>kotlin-maven-plugin</artifactId>
        <version>{kotlin}</version>
        <configuration>
          <jvmTarget>11</jvmTarget>
          <args>
            <arg>-Werror</arg>
            <arg>-Xnullability-annotations=@android.annotation:warn</arg>
          </args>
        </configuration>
        <executions>
          <execution>
            <goals>
              <goal>compile</goal>
            </goals>
          </execution>
        </executions>
      </plugin>
    </plugins>
  </build>
</project>
"""


def test_it_comes_with_sources_pages_and_a_pom_that_names_what_it_needs() -> None:
    pom = ElementTree.parse(FOLDER / f"sdk-{VERSION}.pom")
    needed = {
        f"{each.findtext('m:artifactId', namespaces=POM)} {each.findtext('m:version', namespaces=POM)}"
        for each in pom.findall("m:dependencies/m:dependency", POM)
    }
    versions = {
        name: ROOT.findtext(f"m:properties/m:{name}.version", namespaces=POM)
        for name in ("kotlin", "coroutines", "protobuf", "okhttp", "executorch")
    }

    assert pom.findtext("m:packaging", namespaces=POM) == "aar"
    assert needed == {
        f"kotlin-stdlib {versions['kotlin']}",
        f"kotlinx-coroutines-android {versions['coroutines']}",
        f"protobuf-javalite {versions['protobuf']}",
        f"okhttp {versions['okhttp']}",
        f"executorch-android {versions['executorch']}",
    }
    held = {
        "": "classes.jar",
        "-sources": "org/fedlens/sdk/FedLens.kt",
        "-javadoc": "org/fedlens/sdk/FedLens.html",
    }
    for kind, name in held.items():
        with ZipFile(FOLDER / f"sdk-{VERSION}{kind}.{'jar' if kind else 'aar'}") as archive:
            assert name in archive.namelist(), sorted(archive.namelist())[:20]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("mvn") is None, reason="there is no Maven")
def test_an_app_outside_the_tree_compiles_the_guide_with_it(tmp_path: Path) -> None:
    for name, text in guide.code_blocks().items():
        if name.endswith(".kt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
    values = {
        "url": PUBLISHED.as_uri(),
        "version": VERSION,
        "android": ROOT.findtext("m:properties/m:android.all.version", namespaces=POM),
        "kotlin": ROOT.findtext("m:properties/m:kotlin.version", namespaces=POM),
    }
    (tmp_path / "pom.xml").write_text(APP.format(**values), encoding="utf-8")
    known = _all_but_fedlens(Path.home() / ".m2" / "repository", tmp_path / "known")

    done = subprocess.run(
        # Kotlin's daemon would outlive the test, and keep half a gigabyte.
        ["mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={known}", "-Dkotlin.compiler.daemon=false", "compile"],
        cwd=tmp_path,
        env=os.environ | {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "target/classes/org/fedlens/example/ExampleApp.class").is_file()


def _all_but_fedlens(repository: Path, folder: Path) -> Path:
    """What Maven has fetched before, without an SDK that it had of an earlier build."""
    (folder / "org").mkdir(parents=True)
    for path in (*repository.iterdir(), *(repository / "org").iterdir()):
        if path not in (repository / "org", repository / "org" / "fedlens"):
            (folder / path.relative_to(repository)).symlink_to(path)
    return folder
