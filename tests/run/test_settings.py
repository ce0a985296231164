import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.cache.settings import CacheSettings
from stoker.core.errors import ConfigError
from stoker.core.settings_sources import Resolved
from stoker.run.settings import KEYS, ReportSettings, RunSettings, resolve

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "workers": st.none() | st.integers(0, 3),
    "max_workers": st.none() | st.integers(3, 64),
    "cpu_budget": st.none() | st.floats(0.1, 256),
    "worker_memory_bytes": st.none() | st.integers(1 << 20, 2**50),
    "slot_memory_bytes": st.none() | st.integers(1 << 20, 2**50),
    "random": st.sampled_from(["keep", "sample"]),
    "tier": st.sampled_from(["auto", "pinned"]),
    "cut": st.sampled_from(["exact", "always", "off"]),
    "cache": st.sampled_from(["off", "on", "/pages"]),
    "cache_required": st.booleans(),
    "cache_size_bytes": st.none() | st.integers(1 << 20, 2**50),
    "cache_rules": st.none() | st.just("s3://data/* immutable; https://* 5min"),
    "cache_verify": st.sampled_from(["always", "first-touch"]),
    "cache_eviction": st.none() | st.sampled_from(["epoch", "sieve", "s3fifo", "lru"]),
    "cache_join": st.none() | st.sampled_from(["static:a:7070,b:7070", "file:///ring.json", "etcd://a:2379/name"]),
    "cache_secret_file": st.none() | st.just("/secret"),
    "cache_tls_ca": st.none() | st.just("/ca.pem"),
    "cache_timeout_s": st.floats(0.05, 30.0),
    "versus_plain": st.none() | st.integers(120, 10**9),
    "off": st.booleans(),
    "quiet": st.booleans(),
    "run_dir": st.none()
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
        lambda text: text == text.strip()  # blanks around a value are not part of it
    ),
    "on_bad_sample": st.sampled_from(["raise", "skip", "replace"]),
    "bad_sample_cap": st.integers(0, 10**6),
    "stall_timeout_s": st.floats(0.1, 1e6),
    "replay": st.none() | st.just("0:17:4711"),
    "backend": st.sampled_from(["local", "ray", "static:a:7071,b:7071"]),
    "remote_secret_file": st.none() | st.just("/secret"),
    "remote_workers": st.none() | st.integers(0, 100),
    "remote_env": st.none() | st.just("DATA_ROOT,HF_HOME"),
    "remote_pip": st.none() | st.just("--no-index albumentations==1.4"),
    "insecure": st.booleans(),
    "training_workers": st.none() | st.sampled_from(["2", "1:4"]),
    "objective": st.just("rate"),
    "worker_price": st.none() | st.floats(0.0, 10.0),
    "cpu_price": st.none() | st.floats(0.0, 10.0),
    "horizon_s": st.floats(1.0, 1e6),
    "accumulation_env": st.none() | st.just("ACCUMULATION"),
    "comm": st.sampled_from(["off", "auto", "average"]),
    "comm_allow": st.none() | st.sampled_from(["split", "compress", "split,compress"]),
    "fit": st.sampled_from(["off", "report", "auto"]),
    "device_memory_bytes": st.none() | st.integers(2**20, 2**40),
}
some_settings = st.builds(RunSettings.of, **VALUES)


def resolved(tmp_path: Path, environ: dict[str, str] | None = None, **command_line: object) -> Resolved:
    return resolve(command_line, environ=environ or {}, cwd=tmp_path)


def test_every_field_has_a_key_and_every_key_a_field() -> None:
    assert [key.field for key in KEYS] == list(RunSettings().flat()) == list(VALUES)


@given(some_settings)
def test_settings_reach_a_child_unchanged(settings: RunSettings) -> None:
    text = settings.to_json()
    assert "\n" not in text
    assert RunSettings.from_json(text) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings


@given(some_settings)
def test_resolving_a_full_command_line_gives_it_back(settings: RunSettings) -> None:
    given_values = settings.flat()
    result = resolve(given_values, environ={}, cwd=Path("/"))
    assert result.settings == settings
    assert all(
        origin == ("default" if given_values[field] is None else "the command line")
        for field, origin in result.origins.items()
    )


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        RunSettings().scale.workers = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", -1),
        ("workers", 1.5),
        ("workers", True),
        ("max_workers", 0),
        ("cpu_budget", 0.0),
        ("cpu_budget", float("nan")),
        ("cpu_budget", float("inf")),
        ("cpu_budget", 0.01),
        ("worker_memory_bytes", 5),
        ("slot_memory_bytes", 0),
        ("slot_memory_bytes", 1023),
        ("random", "maybe"),
        ("tier", None),
        ("cache", ""),
        ("cache", True),
        ("cache_required", 1),
        ("cache_size_bytes", 0),
        ("cache_size_bytes", 100_000),
        ("cache_rules", "sometimes"),
        ("cache_verify", "never"),
        ("cache_eviction", "fifo"),
        ("cache_join", "http://a:7070"),
        ("cache_secret_file", ""),
        ("cache_tls_ca", ""),
        ("cache_timeout_s", 31.0),
        ("versus_plain", 0),
        ("versus_plain", 119),
        ("versus_plain", True),
        ("off", 1),
        ("run_dir", ""),
        ("on_bad_sample", "ignore"),
        ("bad_sample_cap", -1),
        ("bad_sample_cap", None),
        ("stall_timeout_s", 0),
        ("stall_timeout_s", 0.001),
        ("stall_timeout_s", float("nan")),
    ],
)
def test_a_wrong_value_is_refused_at_construction(field: str, value: object) -> None:
    name = next(key.name for key in KEYS if key.field == field)
    with pytest.raises(ConfigError, match=rf"^`{name}` must be .*, got {value!r}"):
        RunSettings.of(**{field: value})  # type: ignore[arg-type]


def test_the_number_of_workers_may_not_pass_its_own_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`workers` must be at most `max-workers`, got 9 and 2"):
        RunSettings.of(workers=9, max_workers=2)
    with pytest.raises(ConfigError, match="from environment STOKER_WORKERS and the command line"):
        resolved(tmp_path, {"STOKER_WORKERS": "9"}, max_workers="2")


@pytest.mark.parametrize(
    "text", ["", "{", '{"scale": {"workers": "three"}}', '{"unknown": 1}', '{"scale": {"workers": -1}}']
)
def test_settings_of_a_stranger_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        RunSettings.from_json(text)


def test_environment(tmp_path: Path) -> None:
    environ = {
        "STOKER_WORKERS": "3",
        "STOKER_MAX_WORKERS": "auto",
        "STOKER_CPU_BUDGET": "1.5",
        "STOKER_SLOT_MEMORY": "2GiB",
        "STOKER_QUIET": "1",
        "STOKER_STALL_TIMEOUT": "2min",
        "STOKER_RANDOM": "",  # as good as unset
        "HOME": str(tmp_path),
    }
    result = resolved(tmp_path, environ)
    assert result.settings == RunSettings.of(
        workers=3, cpu_budget=1.5, slot_memory_bytes=2 << 30, quiet=True, stall_timeout_s=120.0
    )
    assert result.origins["workers"] == "environment STOKER_WORKERS"
    assert result.origins["random"] == "default"


@pytest.mark.parametrize(("text", "off"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("false", False)])
def test_disable_is_another_word_for_off(tmp_path: Path, text: str, off: bool) -> None:
    assert resolved(tmp_path, {"STOKER_DISABLE": text}).settings.report.off is off
    assert resolved(tmp_path, {"STOKER_DISABLE": text, "STOKER_OFF": text}).settings.report.off is off


def test_a_key_given_twice_in_one_source_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`off` must be given once.*STOKER_DISABLE.*STOKER_OFF"):
        resolved(tmp_path, {"STOKER_DISABLE": "1", "STOKER_OFF": "0"})


@pytest.mark.parametrize("variable", ReportSettings.variables)
def test_internal_variables_are_not_settings(tmp_path: Path, variable: str) -> None:
    assert resolved(tmp_path, {variable: "anything"}).settings == RunSettings()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("STOKER_WORKRS", "3", r"`STOKER_WORKRS` is not a setting .*environment.* did you mean `STOKER_WORKERS`\?"),
        ("STOKER_QQQ", "3", r"known are STOKER_ACCUMULATION_ENV, STOKER_BACKEND"),
        ("STOKER_WORKERS", "many", r"`workers` must be a whole number .*, got 'many' from environment STOKER_WORKERS"),
        ("STOKER_SLOT_MEMORY", "2G", r"`2G` is ambiguous: write `GiB`"),
        ("STOKER_OFF", "maybe", r"`off` must be a switch .*, got 'maybe'"),
        ("STOKER_BAD_SAMPLE_CAP", "auto", r"`bad-sample-cap` must be .*, got 'auto'"),
    ],
)
def test_mistakes_in_the_environment(tmp_path: Path, variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(tmp_path, {variable: value})


def project(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_the_nearest_file_that_speaks_of_stoker_counts(tmp_path: Path) -> None:
    project(tmp_path, "pyproject.toml", "[tool.stoker]\nworkers = 1\n")
    inner = project(tmp_path / "a", "pyproject.toml", "[tool.other]\nx = 1\n")
    assert resolved(inner).settings.scale.workers == 1
    project(inner, "stoker.toml", 'slot-memory = "1GiB"\nworker_memory = 5000000\ncpu-budget = 2\noff = true\n')
    result = resolved(project(inner / "deep", "notes.txt", ""))
    assert result.settings == RunSettings.of(
        slot_memory_bytes=1 << 30, worker_memory_bytes=5_000_000, cpu_budget=2, off=True
    )
    assert result.origins["off"] == str(inner / "stoker.toml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "pyproject.toml",
            "[tool.stoker]\nworkrs = 3\n",
            r"`workrs` is not .*\[tool.stoker\].*did you mean `workers`\?",
        ),
        ("pyproject.toml", "[tool.stoker]\nworkers = [3]\n", r"`workers` must be .*, got \[3\] from .*pyproject.toml"),
        ("pyproject.toml", "[tool]\nstoker = 3\n", r"`tool.stoker` must be a table, got 3"),
        ("pyproject.toml", "[tool.stoker\n", r"pyproject.toml` must be readable TOML: .*line 1"),
        ("stoker.toml", "workers = 1.0\n", r"`workers` must be a whole number .*, got 1.0"),
        (
            "stoker.toml",
            "slot-memory = 1048576\nslot_memory_bytes = 2097152\n",
            r"`slot-memory` must be given once, got 1048576 .*and 2097152",
        ),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(project(tmp_path, name, text))


def test_a_mistake_is_an_error_even_where_a_stronger_source_wins(tmp_path: Path) -> None:
    project(tmp_path, "stoker.toml", "workers = -3\n")
    with pytest.raises(ConfigError, match=r"got -3 from .*stoker.toml"):
        resolved(tmp_path, workers=2)


SOURCES = ("the command line", "environment STOKER_WORKERS", "stoker.toml", "config.toml", "default")


@given(present=st.tuples(*[st.booleans()] * 4))
def test_the_strongest_source_that_names_a_key_wins(
    tmp_path_factory: pytest.TempPathFactory, present: tuple[bool, ...]
) -> None:
    root = tmp_path_factory.mktemp("sources")
    environ = {"HOME": str(root / "home")}
    if present[1]:
        environ["STOKER_WORKERS"] = "1"
    if present[2]:
        project(root / "work", "stoker.toml", "workers = 2")
    if present[3]:
        project(root / "home/.config/stoker", "config.toml", "workers = 3")
    result = resolve({"workers": 0 if present[0] else None}, environ=environ, cwd=root / "work")
    strongest = [*present, True].index(True)
    assert result.settings.scale.workers == [0, 1, 2, 3, None][strongest]
    assert result.origins["workers"].endswith(SOURCES[strongest])


def test_the_user_file_follows_xdg(tmp_path: Path) -> None:
    project(tmp_path / "xdg/stoker", "config.toml", "quiet = true")
    assert resolved(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}).settings.report.quiet
    assert not resolved(tmp_path, {"XDG_CONFIG_HOME": "xdg"}).settings.report.quiet


@pytest.mark.parametrize(
    ("text", "cache"),
    [
        ("cache = true", "on"),
        ('cache = "off"', "off"),
        ("[tool.stoker.cache]\non = true", "on"),
        ('[tool.stoker.cache]\ndirectory = "/pages"', "/pages"),
        ('[tool.stoker.cache]\non = false\ndirectory = "/pages"', "off"),
    ],
)
def test_the_cache_in_a_file(tmp_path: Path, text: str, cache: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.stoker]\nquiet = true\n{text}\n")
    assert resolved(tmp_path).settings.cache.directory == cache


def test_the_table_of_the_cache_has_its_size_and_rules(tmp_path: Path) -> None:
    (tmp_path / "stoker.toml").write_text(
        '[cache]\nsize = "50GB"\nrules = ["s3://data/* immutable", "https://* 5min"]\n'
        'join = "static:a:7070"\nsecret-file = "/secret"\n'
    )
    settings = resolved(tmp_path).settings
    assert (settings.cache.directory, settings.cache.limit_bytes) == ("on", 50_000_000_000)
    assert settings.cache.rules == "s3://data/* immutable; https://* 5min"
    assert (settings.cache.cluster.join, settings.cache.cluster.secret_file) == ("static:a:7070", "/secret")
    (tmp_path / "stoker.toml").write_text("[cache]\nsise = 1\n")
    with pytest.raises(ConfigError, match="did you mean `cache-size`"):
        resolved(tmp_path)


def test_the_place_of_the_cache_is_no_setting_and_no_mistake(tmp_path: Path) -> None:
    assert resolved(tmp_path, {"STOKER_CACHE_DIR": "/pages"}).settings == RunSettings()


def test_auto_on_the_command_line_beats_a_number_below(tmp_path: Path) -> None:
    result = resolved(tmp_path, {"STOKER_WORKERS": "3"}, workers="auto")
    assert (result.settings.scale.workers, result.origins["workers"]) == (None, "the command line")


def test_every_variable_in_the_source_is_a_setting_or_internal() -> None:
    source = Path(stoker.__file__).parent
    texts = [path.read_text() for path in source.rglob("*.py")]
    words = {word for text in texts for word in re.findall(r"STOKER_[A-Z][A-Z_]*[A-Z]", text)}
    assert words <= {key.variable for key in KEYS} | {
        *ReportSettings.variables,
        *CacheSettings.variables,
        "STOKER_DISABLE",
    }
