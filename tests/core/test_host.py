import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core import host

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    """Writes a small file system."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("50000\n", 0.5),
        ("-1 100000", None),
        ("", None),
        ("200000 50000", 4.0),
    ],
)
def test_parse_cpu_max(text: str, cores: float | None) -> None:
    assert host.parse_cpu_max(text) == cores


def test_parse_cgroup_of_both_versions() -> None:
    text = "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/x\n0::/user.slice/a:b\n"
    paths = host.parse_cgroup(text)
    assert (paths["cpu"], paths["cpuacct"], paths["memory"]) == ("/docker/abc",) * 3
    assert paths[""] == "/user.slice/a:b"


@given(st.text())
def test_texts_of_proc_never_break_the_parsers(text: str) -> None:
    host.parse_cgroup(text)
    host.parse_meminfo(text)
    host.parse_meminfo(f"{text}: {text} kB")


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slice/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/cpu.max": "800000 100000\n",
        },
    )
    assert host.quota_cores(root) == 2.5
    assert host.cores(root) == min(2.5, host.affinity_cores())


@pytest.mark.parametrize("cgroup", ["0::/\n", "0::/docker/not-visible-here\n", "0::/../../other\n"])
def test_a_container_finds_its_own_group_at_the_root_of_the_mount(tmp_path: Path, cgroup: str) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": cgroup, "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert host.cores(root) == 0.5


def test_version_one_quota(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert host.quota_cores(root) == 1.5


def test_no_quota_leaves_the_affinity(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n"})
    assert host.quota_cores(root) is None
    assert host.cores(root) == host.affinity_cores()
    assert host.cores(tmp_path / "nothing") == host.affinity_cores()


def test_the_affinity_mask_counts() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert host.cores() <= 1.0
    finally:
        os.sched_setaffinity(0, allowed)


MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {10 * GIB // 1024} kB\nHugePages_Total: 0\n"


def test_memory_without_a_limit_is_the_machine(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"},
    )
    assert host.memory_bytes(root) == (16 * GIB, 10 * GIB)


def test_memory_limit_and_reclaimable_cache_of_version_two(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"active_file 5\ninactive_file {GIB}\n",
        },
    )
    assert host.memory_bytes(root) == (4 * GIB, 2 * GIB)


def test_memory_limit_of_version_one(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "9:memory:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert host.memory_bytes(root) == (2 * GIB, 0)


def test_a_real_reading_is_plausible() -> None:
    here = host.read_host()
    assert 0 < here.cores <= here.cores_of_machine
    assert 0 < here.memory_available_bytes <= here.memory_limit_bytes
    assert 0 < here.open_files <= here.open_files_max
    assert here.start_method in multiprocessing.get_all_start_methods()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events.local": "oom 3\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "0::/out/of/sight\n", "sys/fs/cgroup/memory.events": "oom_kill 4\n"}, 4),
        ({"proc/self/cgroup": "9:memory:/job\n", "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill 0\n"}, 0),
        ({"proc/self/cgroup": "9:memory:/job\n", "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\n"}, 7),
        ({"proc/self/cgroup": "0::/\n"}, 7),
    ],
)
def test_kills_for_memory_are_those_of_the_own_cgroup_where_it_counts(
    files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    """Another program that ran out of memory beside this one is no reason why a worker of it ended."""
    root = tree(tmp_path, files | {"proc/vmstat": "nr_free_pages 1\noom_kill 7\n"})
    assert host.kills_for_memory(root) == expected


def test_no_shared_memory_is_zero(tmp_path: Path) -> None:
    assert host.shm_free_bytes(tmp_path / "none") == 0
    assert host.shm_free_bytes(tmp_path) > 0
