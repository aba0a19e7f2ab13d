"""The code in `docs/android.md` is the code that is compiled, and the files that it names exist."""

import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.android import guide

ANDROID = guide.REPOSITORY / "android_demo"
SDK = ANDROID / "sdk" / "src" / "main"
PAGE = guide.GUIDE.read_text(encoding="utf-8")
NAME = "{http://schemas.android.com/apk/res/android}name"


def test_the_guides_code_is_the_examples_which_is_compiled() -> None:
    files = {str(path.relative_to(guide.EXAMPLE)) for path in guide.EXAMPLE.rglob("*.*") if path.is_file()}

    shown = guide.code_blocks()

    assert set(shown) == files
    assert {path: (guide.EXAMPLE / path).read_text(encoding="utf-8") for path in files} == shown, "run `make docs`"


def test_the_guide_depends_on_the_sdk_of_this_version() -> None:
    catalogue = tomllib.loads((ANDROID / "gradle" / "libs.versions.toml").read_text(encoding="utf-8"))
    _, block = re.findall(r"<!-- gradle -->\n```kotlin\n(.*?)```", PAGE, re.DOTALL)

    assert re.findall(r'implementation\("(.+?)"\)', block) == [f"org.fedlens:sdk:{catalogue['versions']['fedlens']}"]
    assert f"`org.pytorch:executorch-android:{catalogue['versions']['executorch']}`" in PAGE
    assert f"minSdk = {catalogue['versions']['min-sdk']}\n" in block


def test_every_reason_in_the_guide_is_one_that_a_client_ends_with() -> None:
    errors = (SDK / "kotlin" / "org" / "fedlens" / "sdk" / "FedLensException.kt").read_text(encoding="utf-8")
    _, _, table = PAGE.partition("| `error.reason` |")
    table, _, _ = table.partition("\n\n")

    named = set(re.findall(r"`([A-Z_]{5,})`", table))

    assert len(named) > 10
    assert [reason for reason in sorted(named) if f"        {reason}," not in errors] == []


def test_every_permission_that_is_asked_for_is_explained() -> None:
    manifests = [SDK / "AndroidManifest.xml", *ANDROID.glob("*/src/main/AndroidManifest.xml")]

    asked = {
        element.attrib[NAME].rpartition(".")[2]
        for manifest in manifests
        for element in ElementTree.parse(manifest).iter("uses-permission")
    }

    assert "INTERNET" in asked
    assert [name for name in sorted(asked) if f"| `{name}` |" not in PAGE] == []


def test_every_kotlin_name_in_the_guide_is_in_the_sdk() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    code = "\n".join(path.read_text(encoding="utf-8") for path in Path(SDK / "kotlin").rglob("*.kt"))

    named = set(re.findall(r"`(?:client\.|album\.|ClientSettings[.(]|Policy\(|Callbacks\.|Running\.)(\w+)", prose))

    assert {"journal", "forget", "pins", "policy", "upload", "cancel"} <= named
    assert [name for name in sorted(named) if not re.search(rf"\b(?:fun|val) (?:<[^>]*> )?{name}\b", code)] == []
