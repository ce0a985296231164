"""What a process leaves behind of its reads."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore

READER = """
import sys, fsspec
from stoker.cache.policies import Rule
rules = (Rule(max_age_s=60.0),)
filesystem = fsspec.filesystem("stoker", target_protocol="file", directory=sys.argv[1], rules=rules)
for _ in range(3):
    filesystem.cat_file(sys.argv[2])
"""


@pytest.mark.integration
def test_the_few_reads_of_a_short_program_count(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"x" * 1000)
    for _ in range(2):
        command = [sys.executable, "-c", READER, str(tmp_path / "pages"), str(tmp_path / "object")]
        subprocess.run(command, check=True, timeout=60)
    with PageStore(tmp_path / "pages", StoreSettings()) as store:
        assert store.stats().hits >= 5
