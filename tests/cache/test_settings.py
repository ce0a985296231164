"""The cache's settings: declared once, handed on whole, and refused where they are not understood."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cache.filesystem.routing_settings import Routing
from stoker.cache.page_stores import settled
from stoker.cache.policies import Freshness, Rule
from stoker.cache.settings import ARGUMENTS, CacheSettings
from stoker.core.errors import ConfigError
from stoker.core.settings import ArgumentError
from stoker.core.settings_sources import resolve
from stoker.run.caching.cache_run import CacheRun

ROOT = Path(__file__).parent.parent.parent

FIELD = '''
    forget: Annotated[Policy | None, choice("what its workers forget first", form="POLICY")] = None
    """What its workers forget first."""
'''
"""A new option of the cache: this in its struct is one file, the line in its reference and the place of its use two."""

PROBE = """
import os, sys
from msgspec.structs import asdict
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.filesystem import routing
from stoker.cache.filesystem.resolve_url import settings_in_use
from stoker.cache.filesystem.routing_settings import Routing
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.store.layout import StoreSettings
from stoker.cli import config_show, run
from stoker.run.caching.cache_run import CacheRun
from stoker.run.run_context import Active
from stoker.run.settings import resolve

def forgets():
    yield resolve({"cache-forget": "sieve"}).settings
    yield resolve().settings
    active = Active(settings=resolve().settings, run_dir="x")
    yield Active.from_environment({"STOKER_ACTIVE": active.to_environment()}).settings

print(run.help_text())
config_show.main(["show"])
print([settings.cache.cluster.forget for settings in forgets()])
cache = settings_in_use()
print(CacheRun.from_json(CacheRun(cache=cache, ledger="l", pid=1, quiet=False).to_json()).cache.cluster.forget)
print(ClientSettings(**asdict(cache.cluster)).forget, StoreSettings(**asdict(cache)).cluster.forget)
routing.install(forget="sieve", directory=sys.argv[1])
print(Routing.from_json(os.environ["STOKER_CACHE_INSTALL"]).cache.cluster.forget, settings_in_use().cluster.forget)
StokerFileSystem("memory", forget="sieve", directory=sys.argv[1])
try:
    StokerFileSystem("memory", forget="fifo", directory=sys.argv[1])
except ValueError as error:
    print(error)
"""


def test_a_new_option_is_a_field(tmp_path: Path) -> None:
    """Command line, environment, files, `config show`, arguments and what processes hand on follow from the field."""
    source = tmp_path / "src/stoker"
    shutil.copytree(ROOT / "src/stoker", source, ignore=shutil.ignore_patterns("__pycache__", "perf"))
    text = (source / "cache/settings.py").read_text()
    before = '    prefix: ClassVar[str] = "cache"\n'
    assert text.count(before) == 2
    (source / "cache/settings.py").write_text(text.replace(before, before + FIELD, 1))
    (tmp_path / "stoker.toml").write_text('[cache]\nforget = "lru"\n')
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "pages")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "  --cache-forget POLICY              what its workers forget first" in lines
    assert next(line for line in lines if line.startswith("cache-forget")).split() == [
        "cache-forget", "lru", str(tmp_path / "stoker.toml")
    ]  # fmt: skip
    assert lines[-5:] == [
        "['sieve', 'lru', 'lru']",
        "lru",
        "lru lru",
        "sieve sieve",
        "`forget` must be one of `epoch`, `sieve`, `s3fifo`, `lru`, got 'fifo' [STOKER1001]",
    ]


def test_what_a_run_hands_on_is_json_by_field_name() -> None:
    rule = Rule(pattern="s3://a/*", freshness=Freshness.ALWAYS, pinned_since=1.5)
    cache = CacheSettings(directory="/pages", rules=(rule, Rule())).but(cache_join="static:a:1", cache_timeout_s=0.5)
    told = CacheRun(cache=cache, ledger="/pages/runs/1", pid=7, quiet=True)
    assert CacheRun.from_json(told.to_json()) == told
    fields = json.loads(told.to_json())
    assert fields["cache"]["rules"][0]["pattern"] == "s3://a/*"
    # Another order, and fields that are left out: as an older process may write it.
    del fields["cache"]["cluster"]["tls_ca"]
    assert CacheRun.from_json(json.dumps(dict(reversed(fields.items())))) == told


@pytest.mark.parametrize("kind", [CacheRun, Routing])
def test_a_field_that_is_not_known_is_refused_by_name(kind: type[CacheRun] | type[Routing]) -> None:
    """It may ask for what this version does not do, such as encryption."""
    own = {"ledger": "", "pid": 1, "quiet": False} if kind is CacheRun else {"protocols": []}
    with pytest.raises(ConfigError, match="unknown field `sealed`"):
        kind.from_json(json.dumps({"cache": {"cluster": {"sealed": True}}, **own}))


def test_arguments_keep_their_names_and_their_errors(tmp_path: Path) -> None:
    assert list(ARGUMENTS) == [
        "directory", "limit_bytes", "rules", "verify", "eviction", "join", "secret_file", "tls_ca", "timeout_s"
    ]  # fmt: skip
    found = CacheSettings().with_arguments({"directory": tmp_path, "rules": [Rule()], "secret_file": None})
    assert (found.directory, found.rules) == (str(tmp_path), (Rule(),))
    with pytest.raises(ValueError, match=r"^`timeout_s` must be a time from `0.05s` to `30s`, got 0\.0"):
        CacheSettings().with_arguments({"timeout_s": 0.0})
    with pytest.raises(ArgumentError, match=r"^`limit_bytes` must be a size of at least 1 MiB"):
        CacheSettings().with_arguments({"limit_bytes": 5})
    with pytest.raises(TypeError, match="`required` must be one of directory,"):
        CacheSettings().with_arguments({"required": True})


def test_paths_mean_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = settled(CacheSettings.of(cache="pages", cache_secret_file="~/secret", cache_tls_ca="ca.pem"))
    assert found.directory == str(tmp_path / "pages")
    assert found.cluster.secret_file == str(tmp_path / "home/secret")
    assert found.cluster.tls_ca == str(tmp_path / "ca.pem")
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "own"))
    assert settled(CacheSettings.of(cache="on")).directory == str(tmp_path / "own")


@pytest.mark.parametrize("variable", ["STOKER_CACHE_SIZ", "STOKER_CACH_SIZE", "STOKER_CAHE_RULES"])
def test_the_cache_alone_refuses_what_is_meant_for_it(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError, match=f"`{variable}` is not a setting .* did you mean `STOKER_CACHE"):
        resolve(CacheSettings, environ={variable: "1"}, cwd=tmp_path)


def test_the_cache_alone_passes_over_settings_of_others(tmp_path: Path) -> None:
    (tmp_path / "stoker.toml").write_text('workers = 3\nreplay = "0:1:2"\n[cache]\nsize = "2GiB"\n')
    environ = {
        "STOKER_STALL_TIMEOUT": "5s",
        "STOKER_DISABLE": "1",
        "STOKER_ACTIVE": "{}",
        "STOKER_CACHE_VERIFY": "always",
    }
    found = resolve(CacheSettings, environ=environ, cwd=tmp_path)
    assert found.settings == CacheSettings(directory="on", limit_bytes=2 << 30)
    assert found.origins["cache_verify"] == "environment STOKER_CACHE_VERIFY"


def test_rules_that_a_run_pins_stay_in_their_order() -> None:
    text = "s3://a/* immutable; *  5min"
    rules = CacheSettings(rules=text).all_rules
    pinned = CacheSettings(rules=tuple(replace(rule, pinned_since=2.0) for rule in rules))
    assert [rule.pattern for rule in pinned.all_rules] == [rule.pattern for rule in rules]
