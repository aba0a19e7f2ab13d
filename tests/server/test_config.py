import configparser
import re
from contextlib import closing
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_der_public_key
from sqlalchemy import select

from fedlens_export.signing import private_key
from fedlens_proto.programs.statements import Publisher
from fedlens_server import config as config_module
from fedlens_server.config import Config, ConfigError, load
from fedlens_server.init import initialise, make_data
from fedlens_server.store import StateAddress, Store, schema
from fedlens_server.store.address import Bucket

ROOT = Path(__file__).parents[2]
CERTIFICATES = f'certificates = ["{":".join(["AB"] * 32)}"]'
ADMIN = f'[admin]\ntoken_sha256 = "{"5" * 64}"\n'


def config_of(folder: Path, text: str) -> Config:
    path = folder / "fedlens.toml"
    path.write_text(text)
    return load(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config_of(folder, text)
    return str(caught.value)


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    config = config_of(tmp_path, ADMIN)

    assert (config.server.host, config.server.port, config.admin.port) == ("127.0.0.1", 8443, 8444)
    assert config.server.data == tmp_path / "data"
    assert config.server.retention_days == 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[server]\nport = "abc"\n',
            "fedlens.toml: server.port: found 'abc', must be an integer from 0 to 65535; 0 takes any free port",
        ),
        ("[server]\nport = 65536\n", "server.port: found 65536, must be an integer from 0 to 65535"),
        ("[server]\nport = true\n", "server.port: found True, must be an integer"),
        ("[server]\nbehind_proxy = 1\n", "server.behind_proxy: found 1, must be true or false"),
        ("[server]\napps = 3\n", "server.apps: found 3, must be a list of tables, each `[[server.apps]]`"),
        *(
            (f"[[server.apps]]\n{given}\n", f"server.apps.{told}")
            for given, told in [
                (
                    'package = "word"\n' + CERTIFICATES,
                    "package: found 'word', must be the name of an Android package, such as `org.example.app`",
                ),
                ('package = "a.b\\n"\n' + CERTIFICATES, "package: found 'a.b\\n', must be the name"),
                ('package = "a.b"', "certificates: found nothing, must be a list of texts of 32 pairs"),
                ('package = "a.b"\ncertificates = []', "certificates: found [], must be a list of texts of 32 pairs"),
                (
                    'package = "a.b"\n' + CERTIFICATES.replace("AB", "ab", 1),
                    "certificates: found 'ab:AB:",
                ),
                ('package = "a.b"\ncertificates = ["AB"]', "certificates: found 'AB', must be"),
                (f'package = "a.b"\n{CERTIFICATES}\nname = 1', "name: unknown key; allowed are server.apps.package"),
            ]
        ),
        *(
            (
                f"[server]\ntrusted_proxies = {value}\n",
                f"trusted_proxies: found {found}, must be a list of addresses and networks, such as `10.0.0.0/8`",
            )
            for value, found in [
                ('"10.0.0.1"', "'10.0.0.1'"),
                ("[1]", "[1]"),
                ('["proxy.example"]', "['proxy.example']"),
                ('["10.0.0.1/8"]', "['10.0.0.1/8']"),
                ('["10.0.0.0/33"]', "['10.0.0.0/33']"),
            ]
        ),
        (
            '[server]\nsocket = "a"\nport = 1\n',
            "server: found socket and port; set socket, or host and port, but not both",
        ),
        ("[server]\nsocket = 3\n", "server.socket: found 3, must be the path of a file"),
        (
            "[limits]\nmax_connections_per_address = 0\n",
            "limits.max_connections_per_address: found 0, must be an integer from 1",
        ),
        (
            "[limits]\nenrolments_per_address = 0\n",
            "limits.enrolments_per_address: found 0, must be an integer from 1 to 1000000",
        ),
        (
            "[server]\nbackups = 3\n",
            "server.backups: found 3, must be the path of a folder, or such as `s3://bucket/prefix`",
        ),
        ("[server]\ndata = 3\n", "server.data: found 3, must be the path of a folder"),
        *(
            (
                f"[server]\nretention_days = {value}\n",
                f"fedlens.toml: server.retention_days: found {found}, must be an integer from 1 to 36500",
            )
            for value, found in [("0", "0"), ("1.5", "1.5"), ("true", "True"), ('"30"', "'30'"), ("36501", "36501")]
        ),
        ("[limits]\nmax_uploads = 0\n", "limits.max_uploads: found 0, must be an integer from 1"),
        ("[limits]\nstop_s = -1\n", "limits.stop_s: found -1, must be a number from 0 to 3600"),
        ("[limits]\nstop_s = nan\n", "limits.stop_s: found nan, must be a number from 0 to 3600"),
        ("limits = 3\n", "limits: found 3, must be a table, [limits]"),
        ('[server]\ncertfil = "x"\n', "fedlens.toml: server.certfil: unknown key; did you mean server.certfile?"),
        ("[limit]\nmax_polls = 3\n", "did you mean limits?"),
        ("[server]\nzzzzzz = 1\n", "server.zzzzzz: unknown key; allowed are server.host, server.port"),
        ('[server]\ncertfile = "/gone.pem"\nkeyfile = "/gone.key"\n', "found '/gone.pem', but there is no such file"),
        ('[server]\nhost = "0.0.0.0"\n', "server.host: found '0.0.0.0' without a certificate"),
        ("[server]\nport = 8444\n", "fedlens.toml: admin.port: found 8444, the same as server.port"),
        (
            '[server]\nhost = "0.0.0.0"\nbehind_proxy = true\nport = 8444\n',
            "admin.port: found 8444, the same as server.port",
        ),
    ],
)
def test_a_bad_value_is_refused_by_name(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text + ADMIN)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ('"a-token-itself"', "14 characters"),
        (f'"{"0" * 65}"', "65 characters"),
        (f'"{"0" * 64}\\n"', "65 characters"),
        (f'"{"A" * 64}"', "64 characters"),
        ("123456", "something else"),
    ],
)
def test_what_stands_in_place_of_a_hash_is_refused_and_not_repeated(tmp_path: Path, value: str, found: str) -> None:
    said = refusal(tmp_path, f"[admin]\ntoken_sha256 = {value}\n")

    assert said == (
        f"{tmp_path}/fedlens.toml: admin.token_sha256: found {found}, must be 64 hexadecimal digits in lower case; "
        "if it is the token itself, `printf %s TOKEN | sha256sum` gives its digest"
    )


def test_the_zeros_of_the_sample_config_are_no_digest(tmp_path: Path) -> None:
    said = refusal(tmp_path, ADMIN.replace("5" * 64, "0" * 64))

    assert "admin.token_sha256: found the sample's zeros; make a token with `openssl rand -hex 32`: `printf" in said


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "[server]\nport = -1\n[admin]\nport = -1\n").splitlines()

    assert [line.split(":")[1].strip() for line in lines] == ["server.port", "admin.port", "admin.token_sha256"]


def test_a_file_that_is_no_toml_is_refused_with_the_line(tmp_path: Path) -> None:
    assert "this is not valid TOML" in refusal(tmp_path, "[server\n")
    assert "line 1" in refusal(tmp_path, "[server\n")
    assert "not valid TOML: Cannot declare [server] twice (at line 2" in refusal(tmp_path, "[server]\n[server]\n")
    assert "not valid TOML: Cannot declare [a.b] twice (at line 2" in refusal(tmp_path, "[a.b]\n[a.b]\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: there is no such file; `fedlens serve --init DIR` creates"):
        load(tmp_path / "nowhere.toml")


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    (tmp_path / "server.pem").touch()

    assert "found certfile without keyfile" in refusal(tmp_path, ADMIN + '[server]\ncertfile = "server.pem"\n')


@pytest.mark.parametrize("place", ["data", "data/backups", "data/blobs/backups", "disk/../data", "disk"])
def test_backups_into_the_state_itself_are_refused(tmp_path: Path, place: str) -> None:
    text = f'[server]\ndata = "data"\nbackups = "{place}"\n{ADMIN}'
    (tmp_path / "disk" / "blobs").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "blobs").symlink_to(tmp_path / "disk" / "blobs")

    assert f"server: found backups '{tmp_path / place}', where the server's own state is" in refusal(tmp_path, text)


def test_plain_http_to_operators_outside_is_refused(tmp_path: Path) -> None:
    assert "admin.host: found '0.0.0.0' without a certificate" in refusal(tmp_path, ADMIN + 'host = "0.0.0.0"\n')


def test_plain_http_to_the_outside_is_allowed_behind_a_proxy(tmp_path: Path) -> None:
    config = config_of(tmp_path, ADMIN + '[server]\nhost = "0.0.0.0"\nbehind_proxy = true\n')

    assert config.server.behind_proxy


def test_trusted_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    config = config_of(tmp_path, ADMIN + '[server]\ntrusted_proxies = ["10.0.0.1", "2001:db8::/32"]\n')

    assert config.server.trusted_proxies == (ip_network("10.0.0.1/32"), ip_network("2001:db8::/32"))


def test_a_socket_stands_instead_of_host_and_port_and_needs_no_certificate(tmp_path: Path) -> None:
    config = config_of(tmp_path, f'{ADMIN}socket = "operators.sock"\n[server]\nsocket = "/run/fedlens/clients.sock"\n')

    assert config.server.socket == Path("/run/fedlens/clients.sock")
    assert config.admin.socket == tmp_path / "operators.sock"


def test_a_database_is_named_without_its_password(tmp_path: Path) -> None:
    config = config_of(tmp_path, ADMIN + '[server]\ndatabase = "postgresql://fedlens@db.example.org/fedlens"\n')

    assert config.server.state.open_database().place == "postgresql://fedlens@db.example.org/fedlens"
    for value, told in (
        ('"postgresql://fedlens:hunter2@db/fedlens"', "found a password in it; leave it out, and set PGPASSWORD"),
        ('"postgresql://db/fedlens?password=hunter2"', "found a password in it"),
        ('"mysql://fedlens@db/fedlens"', "found 'mysql://fedlens@db/fedlens', must be such as"),
        ('"postgresql://db"', "found 'postgresql://db', must be such as 'postgresql://fedlens@db.example.org/fedlens'"),
        ('"hunter2"', "found something else, must be such as"),
        ("7", "server.database: found 7, must be such as"),
    ):
        refused = refusal(tmp_path, f"{ADMIN}[server]\ndatabase = {value}\n")
        assert told in refused
        assert "hunter2" not in refused


def test_the_sample_config_is_loaded(tmp_path: Path) -> None:
    for name in ("server.pem", "server.key"):
        (tmp_path / name).touch()

    text = (ROOT / "deploy/fedlens.toml").read_text()
    (fault,) = refusal(tmp_path, text).splitlines()
    assert "found the sample's zeros" in fault
    config = config_of(tmp_path, text.replace("0" * 64, "5" * 64))

    assert config.server.data == Path("/var/lib/fedlens")


def test_the_sample_config_names_every_key() -> None:
    named = set()
    for line in (ROOT / "deploy/fedlens.toml").read_text().splitlines():
        if header := re.fullmatch(r"(?:# )?(\[+)([\w.]+)\]+", line):
            section = header[2]
            named |= {section} if header[1] == "[[" else set()
        elif assignment := re.match(r"(?:# )?(\w+) = ", line):
            named.add(f"{section}.{assignment[1]}")

    assert named == set(config_module.keys())


def test_the_unit_gives_the_server_time_to_stop(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.read(ROOT / "deploy/fedlens.service")

    assert unit["Service"]["ExecStart"].endswith("fedlens serve --config /etc/fedlens/fedlens.toml")
    assert int(unit["Service"]["TimeoutStopSec"]) > config_of(tmp_path, ADMIN).limits.stop_s
    assert Path("/var/lib") / unit["Service"]["StateDirectory"] == Path("/var/lib/fedlens")


def test_the_documented_keys_are_the_models_keys() -> None:
    rows = re.findall(
        r"^\| `([a-z]+\.[\w.]+)` \| (.*?) \| (.*?) \| (.*?) \|$", (ROOT / "docs/operate.md").read_text(), re.M
    )

    expected = []
    for key, field in config_module.keys().items():
        default = (
            "required" if field.is_required() else "unset" if field.default is None else f"`{_toml(field.default)}`"
        )
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        expected.append((key, default, extra["allowed"], field.description))
    assert rows == expected


def test_init_writes_a_config_that_loads_with_the_tokens_it_wrote(tmp_path: Path) -> None:
    written = initialise(tmp_path / "new", port=0, admin_port=0)

    config = load(written[0])
    with closing(Store.open(config.server.data)) as store:
        tokens = store.read(select(schema.tokens))
    words = ("trainers", "evaluators")
    assert [(token.name, token.max_uses, token.per_minute) for token in tokens] == [(word, 100, 100) for word in words]
    kept = [config.admin.token_sha256, *(token.sha256 for token in tokens)]
    assert kept == [
        sha256((tmp_path / "new" / f"{name}.token").read_bytes().strip()).hexdigest()
        for name in ("admin", "trainer", "evaluator")
    ]
    assert (config.server.port, config.admin.port) == (0, 0)


def test_init_keeps_secrets_from_other_users(tmp_path: Path) -> None:
    written = initialise(tmp_path)

    secret = {path.name for path in written if path.stat().st_mode & 0o077 == 0}
    assert secret == {"admin.token", "trainer.token", "evaluator.token", "server.key", "data"}


def test_init_makes_a_publisher_whose_bundles_alone_the_server_takes(tmp_path: Path) -> None:
    written = initialise(tmp_path, publisher=True)

    (publisher,) = load(written[0]).server.publishers
    assert publisher.id == Publisher.of_pem((tmp_path / "publisher.pub").read_bytes()).id
    assert (tmp_path / "publisher.key").stat().st_mode & 0o077 == 0
    assert private_key(tmp_path / "publisher.key").public_key() == load_der_public_key(publisher.der)
    assert load(initialise(tmp_path / "other")[0]).server.publishers == ()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('"publisher.pub"', "server.publishers: found 'publisher.pub', must be a list of paths of .pub files"),
        ("[1]", "found [1], must be a list of paths"),
        ('["gone.pub"]', "gone.pub', which cannot be read: No such file or directory"),
        ('["fedlens.toml"]', "fedlens.toml: this is no public key in PEM form"),
    ],
)
def test_a_publisher_that_is_no_public_key_is_refused(tmp_path: Path, value: str, told: str) -> None:
    assert told in refusal(tmp_path, f"[server]\npublishers = {value}\n{ADMIN}")


def test_init_overwrites_nothing_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "server.key").write_text("mine")

    with pytest.raises(ConfigError, match=r"server\.key: exists already"):
        initialise(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]
    assert (tmp_path / "server.key").read_text() == "mine"


def test_an_empty_state_is_not_made_where_blobs_of_another_are_also_with_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / ("0f" * 32)).write_bytes(b"a model")

    with pytest.raises(ConfigError, match="blobs: holds blobs of a state, whose database is missing or empty"):
        make_data(StateAddress(folder=tmp_path, bucket=Bucket("bucket", "prefix")))


def test_init_makes_no_certificate_for_an_address_that_is_reached_from_outside(tmp_path: Path) -> None:
    written = initialise(tmp_path, host="0.0.0.0")

    assert not {"ca.pem", "server.pem", "server.key"} & {path.name for path in written}
    with pytest.raises(ConfigError, match=r"server\.certfile: found '.*server\.pem', but there is no such file"):
        load(written[0])


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str | Path) else str(value)
