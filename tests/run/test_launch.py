"""`stoker run PROGRAM` is `python PROGRAM`, with the hook armed: each check runs the same program both ways."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import stoker
from stoker.cli import run as cli_run
from stoker.run import launch
from stoker.run.run_context import Active
from stoker.run.settings import RunSettings
from tests.warm import programs

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = str(Path(stoker.__file__).parents[1])
STOKER = ("-m", "stoker", "run")


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment of both runs: stoker importable, nothing of an outer run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON", "LC_"))}
    return {**kept, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"}


def python(*words: object, environ: dict[str, str], cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=environ, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=60)


def forked(*words: object, environ: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same from a process that has torch loaded: for what others of its kind show from the start on."""
    command = [sys.executable, *map(str, words)]
    environ = environ | {"OMP_NUM_THREADS": "1"}
    return programs.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=60)


def both(
    *program: object, environ: dict[str, str], cwd: Path, stdin: str = "", flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a program under plain python and under stoker, requires equal results, and returns stoker's."""
    plain = python(*flags, *program, environ=environ, cwd=cwd, stdin=stdin)
    served = python(*flags, *STOKER, *program, environ=environ, cwd=cwd, stdin=stdin)
    assert (served.returncode, served.stdout, served.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    return served


@pytest.mark.integration
class TestSameProgram:
    @pytest.mark.parametrize(
        "arguments",
        [(), ("--lr", "0.1"), ("--workers", "3", "--help", "--off", "--", "-m", "x", "", "two words")],
        ids=["none", "plain", "like ours"],
    )
    def test_script(self, arguments: tuple[str, ...], environ: dict[str, str], tmp_path: Path) -> None:
        done = both(PROGRAMS / "facts.py", *arguments, environ=environ, cwd=tmp_path, stdin="piped\nlines")
        facts = json.loads(done.stdout)
        assert facts["argv"] == [str(PROGRAMS / "facts.py"), *arguments]
        assert facts["path"][0] == str(PROGRAMS)
        assert facts["stdin"] == "piped\nlines"
        assert not (tmp_path / launch.RUNS_DIR).exists()  # a program without loaders leaves no trace

    def test_relative_script(self, environ: dict[str, str], tmp_path: Path) -> None:
        (tmp_path / "facts.py").write_text((PROGRAMS / "facts.py").read_text())
        done = both("facts.py", environ=environ, cwd=tmp_path)
        assert json.loads(done.stdout)["argv"] == ["facts.py"]

    @pytest.mark.parametrize(
        "flags",
        [
            ("-u",),
            ("-O", "-W", "error", "-Wignore::ImportWarning"),
            ("-X", "dev", "-X", "utf8=1", "-X", "our_own=2"),
            ("-sPW", "always", "-B"),
            ("--check-hash-based-pycs", "never", "-bb", "-q"),
        ],
        ids=" ".join,
    )
    def test_flags_of_python(self, flags: tuple[str, ...], environ: dict[str, str], tmp_path: Path) -> None:
        environ["PYTHONWARNINGS"] = "default::UserWarning"
        both(PROGRAMS / "facts.py", "-u", environ=environ, cwd=tmp_path, flags=flags)

    def test_c_locale(self, environ: dict[str, str], tmp_path: Path) -> None:
        for name in ("LANG", "LANGUAGE"):
            environ.pop(name, None)
        done = both(PROGRAMS / "facts.py", environ=environ, cwd=tmp_path)
        assert "utf8_mode=1" in json.loads(done.stdout)["flags"]

    @pytest.mark.parametrize("form", ["module", "joined", "package", "folder", "zip", "command", "stdin"])
    def test_forms_of_program(self, form: str, environ: dict[str, str], tmp_path: Path) -> None:
        text = (PROGRAMS / "facts.py").read_text()
        package = tmp_path / "shown"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(text)
        (package / "facts.py").write_text(text)
        with zipfile.ZipFile(tmp_path / "shown.zip", "w") as archive:
            archive.writestr("__main__.py", text)
        program = {
            "module": ("-m", "shown.facts"),
            "joined": ("-mshown.facts",),
            "package": ("-m", "shown"),
            "folder": ("shown",),
            "zip": ("shown.zip",),
            "command": ("-c", text),
            "stdin": ("-",),
        }[form]
        stdin = text if form == "stdin" else "piped"
        done = both(*program, "--workers", "x", environ=environ, cwd=tmp_path, stdin=stdin)
        assert json.loads(done.stdout)["argv"][1:] == ["--workers", "x"]

    @pytest.mark.parametrize(
        "program",
        [("missing.py",), ("empty",), ("-m", "missing.module"), ("-m", "json.nothing"), ("wrong.py",), ("-c", "1 +")],
        ids=" ".join,
    )
    def test_programs_that_cannot_start(
        self, program: tuple[str, ...], environ: dict[str, str], tmp_path: Path
    ) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "wrong.py").write_text("x = (1\n")
        done = both(*program, environ=environ, cwd=tmp_path)
        assert done.returncode
        said = done.stderr.replace(sys.executable, "python").replace(str(tmp_path), "here")
        assert "stoker" not in said.replace(sys.prefix, "prefix")

    @pytest.mark.parametrize(
        ("way", "status"),
        [
            ("exit 0", 0),
            ("exit 3", 3),
            ("exit text", 1),
            ("exception", 1),
            ("interrupt", -signal.SIGINT),
            ("terminate", -signal.SIGTERM),
            ("kill", -signal.SIGKILL),
            ("_exit", 7),
            ("late threads", 0),
        ],
    )
    def test_endings(self, way: str, status: int, environ: dict[str, str], tmp_path: Path) -> None:
        done = both(PROGRAMS / "ending.py", way, environ=environ, cwd=tmp_path)
        assert done.returncode == status

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    @pytest.mark.parametrize("way", ["wait", "wait with handler"])
    def test_signals(self, number: signal.Signals, way: str, environ: dict[str, str], tmp_path: Path) -> None:
        results: list[tuple[int, str, str]] = []
        for prefix in ((), STOKER):
            with subprocess.Popen(
                [sys.executable, *prefix, str(PROGRAMS / "ending.py"), way],
                env={**environ, "PYTHONNODEBUGRANGES": "1"},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                process.send_signal(number)  # to the process that was started: it is the program itself
                out, err = process.communicate(timeout=30)
                results.append((process.returncode, out, err))
        assert results[0] == results[1]

    @pytest.mark.parametrize("theirs", ["print('theirs')", "import nothing_of_this_name", "1 / 0", None])
    def test_other_sitecustomize(self, theirs: str | None, environ: dict[str, str], tmp_path: Path) -> None:
        if theirs is not None:
            # In the program only: the launcher is an interpreter of its own, in which it runs as well.
            (tmp_path / "sitecustomize.py").write_text(f"import sys\nif 'stoker' not in sys.orig_argv: {theirs}\n")
        environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), SOURCE])
        (tmp_path / "program.py").write_text(
            "import sys\nprint(getattr(sys.modules.get('sitecustomize'), '__file__', None))\nimport sitecustomize\n"
        )
        both(tmp_path / "program.py", environ=environ, cwd=tmp_path)

    def test_torch_that_fails_to_import(self, environ: dict[str, str], tmp_path: Path) -> None:
        write_small_torch(tmp_path)
        (tmp_path / "torch" / "utils" / "data" / "dataloader.py").write_text("raise OSError('no libcudart')\n")
        done = both("-c", "import torch", environ=environ, cwd=tmp_path)
        assert "no libcudart" in done.stderr


@pytest.mark.integration
class TestHook:
    def test_children(self, environ: dict[str, str], tmp_path: Path) -> None:
        done = python(*STOKER, PROGRAMS / "children.py", environ=environ, cwd=tmp_path)
        assert done.stderr == ""
        assert done.stdout.splitlines() == [
            "here True",
            "fork True []",
            "spawn True []",
            "forkserver True []",
            "interpreter True  0",
            "interpreter -I False  0",
            "interpreter -E False  0",
            "interpreter -S False  0",
            "interpreter -s True  0",
            "data worker False  0",
        ]

    @pytest.mark.parametrize(("helper", "armed"), [("resource_tracker", False), ("forkserver", True)])
    def test_helpers(self, helper: str, armed: bool, environ: dict[str, str], tmp_path: Path) -> None:
        write_small_torch(tmp_path)
        # The helper's own command line begins so; afterwards this one looks around, imports torch as preloading does,
        # and forks as the forkserver does.
        text = (
            f"from multiprocessing.{helper} import main; import os, stoker.run.hook as hook; print(hook.is_armed());"
            "import torch; print(hook.is_installed(), flush=True);"
            "os.fork() or (print('child', hook.is_installed(), flush=True), os._exit(0)); os.wait()"
        )
        done = python(*STOKER, "-c", text, environ=environ, cwd=tmp_path)
        assert done.stdout.splitlines() == [str(armed), "False", f"child {armed}"]

    @pytest.mark.parametrize("when", ["armed before torch", "early torch"])
    def test_handover(self, when: str, environ: dict[str, str], tmp_path: Path) -> None:
        write_small_torch(tmp_path)
        environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), SOURCE])
        options = ("--workers", "2", "--run-dir", "here")
        words = when.split()
        done = python(*STOKER, *options, PROGRAMS / "handover.py", *words, environ=environ, cwd=tmp_path)
        installed = [
            "install True True",
            "torch is whole True",
            f"run here 2 {(str(PROGRAMS / 'handover.py'), *words)}",
        ]
        loaders = [f"{name} SourceFileLoader True" for name in ("torch", "torch.utils.data")]
        lines = [re.sub(r" \{'name'.*", "", line) for line in done.stdout.splitlines()]
        early = "early" in words
        assert done.stderr == ""
        assert lines == [
            f"before {not early} False 0",
            *(installed if early else []),
            f"finders {0 if early else 1}",
            *([] if early else installed),
            "after True True 1",
            "finders 0",
            *loaders,
            "torch.utils.data.dataloader SourceFileLoader True",
        ]
        assert "exec_module" not in done.stdout

    @pytest.mark.parametrize("value", ["", "{", '{"stoker": "0", "run_dir": "x", "settings": {}}'])
    def test_failure_leaves_the_program_alone(self, value: str, environ: dict[str, str], tmp_path: Path) -> None:
        write_small_torch(tmp_path)
        text = f"import os; os.environ['STOKER_ACTIVE'] = {value!r}; import torch; print(torch.complete)"
        done = python(*STOKER, "-c", text, environ=environ, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "True\n")
        line = r"stoker: could not serve this program's loaders: .+; running without stoker\n"
        assert re.fullmatch(line, done.stderr)

    def test_real_torch(self, environ: dict[str, str], tmp_path: Path) -> None:
        pytest.importorskip("torch")
        text = (
            "from stoker.run import hook; import sys; print('torch' in sys.modules, hook.is_armed());"
            "from torch.utils.data import DataLoader; print(hook.is_installed(), [int(b) for b in DataLoader([1, 2])])"
        )
        done = python(*STOKER, "-c", text, environ=environ, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["False True", "True [1, 2]"]

    @pytest.mark.slow("programs and children that start python and torch")
    @pytest.mark.parametrize(
        ("options", "text", "lines"),
        [
            ((), "import torch", 1),
            (("--quiet",), "import torch", 0),
            ((), "import torch; raise KeyError", 0),
            ((), "import torch; next(iter(torch.utils.data.DataLoader([1])))", 0),
            ((), "import os, sys", 0),
            # The same in a child interpreter: only the program itself speaks, and only where no child was served.
            ((), "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])", 0),
            (
                (),
                "import subprocess, sys, torch; subprocess.run([sys.executable, '-c', "
                "'import torch; next(iter(torch.utils.data.DataLoader([1])))'])",
                0,
            ),
        ],
        ids=["unused", "quiet", "failed", "used", "no torch", "torch in a child", "used in a child"],
    )
    def test_a_program_without_loaders_is_told_so(
        self, options: tuple[str, ...], text: str, lines: int, environ: dict[str, str], tmp_path: Path
    ) -> None:
        pytest.importorskip("torch")
        start = forked if options or "torch;" in text else python
        done = start(*STOKER, *options, "-c", text, environ=environ, cwd=tmp_path)
        said = [line for line in done.stderr.splitlines() if "no DataLoader was iterated over" in line]
        assert len(said) == lines, done.stderr
        assert all(line.startswith("stoker: ") and "`stoker explain -c 'import torch'`" in line for line in said)

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_a_program_that_takes_one_batch_gets_its_report(
        self, num_workers: int, environ: dict[str, str], tmp_path: Path
    ) -> None:
        pytest.importorskip("torch")
        text = (
            "import torch; loader = torch.utils.data.DataLoader(range(100), batch_size=4, "
            f"num_workers={num_workers}); print(next(iter(loader)))"
        )
        done = forked(*STOKER, "-c", text, environ=environ, cwd=tmp_path)
        assert done.stdout == "tensor([0, 1, 2, 3])\n"
        assert "run too short: 1 batch" in done.stderr
        assert " · 1 batch · " in done.stderr
        explained = python("-m", "stoker", "explain", environ=environ, cwd=tmp_path)
        assert "1 loader used" in explained.stdout

    def test_interpreter_without_stoker(self, environ: dict[str, str], tmp_path: Path) -> None:
        # Another interpreter that inherits the environment: isolated from our packages, only the hook's folder seen.
        settings = Active(settings=RunSettings(), run_dir="x").to_environment()
        environ |= {"PYTHONPATH": launch.SITE_DIR, "STOKER_ACTIVE": settings}
        base = Path(getattr(sys, "_base_executable", sys.executable))
        command = [str(base), "-c", "import sys; print('stoker' in sys.modules, len(sys.meta_path))"]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.integration
class TestTorchrun:
    TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    def ranks(self, *words: object, environ: dict[str, str], cwd: Path) -> list[dict[str, object]]:
        pytest.importorskip("torch")
        done = python(*words, environ=environ, cwd=cwd)
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return sorted(found, key=lambda rank: rank["rank"])

    def test_torchrun_inside(self, environ: dict[str, str], tmp_path: Path) -> None:
        words = (*STOKER, *self.TORCHRUN, PROGRAMS / "rank.py", "--workers", "x")
        self.check(self.ranks(*words, environ=environ, cwd=tmp_path))

    def test_torchrun_outside(self, environ: dict[str, str], tmp_path: Path) -> None:
        words = (*self.TORCHRUN, *STOKER, "--workers", "2", PROGRAMS / "rank.py", "--workers", "x")
        self.check(self.ranks(*words, environ=environ, cwd=tmp_path))

    def check(self, ranks: list[dict[str, object]]) -> None:
        assert [rank["rank"] for rank in ranks] == [0, 1]
        for rank in ranks:
            assert rank["armed"] is True
            assert rank["argv"] == ["--workers", "x"]
            assert rank["path"] == str(PROGRAMS)
        assert ranks[0]["run_dir"] == ranks[1]["run_dir"]  # one job, one run folder


@pytest.mark.integration
class TestOff:
    TEXT = (
        "import os, sys; print(os.environ.get('STOKER_ACTIVE'), os.environ.get('PYTHONPATH'), 'stoker' in sys.modules)"
    )

    def test_off(self, environ: dict[str, str], tmp_path: Path) -> None:
        done = python(*STOKER, "--off", "-c", self.TEXT, environ=environ, cwd=tmp_path)
        assert done.stdout == f"None {SOURCE} False\n"

    @pytest.mark.parametrize("variables", [{}, {"STOKER_DISABLE": "0"}, {"STOKER_OFF": "0"}])
    def test_off_for_a_program_that_uses_stoker(
        self, variables: dict[str, str], environ: dict[str, str], tmp_path: Path
    ) -> None:
        words = (*STOKER, "--off", PROGRAMS / "library.py")
        start = forked if variables else python
        done = start(*words, environ=environ | variables, cwd=tmp_path)
        module = "torch.utils.data.dataloader"
        assert done.stdout.splitlines() == [f"{name} {module} [[0, 1], [2, 3]]" for name in ("own", "wrapped", "block")]
        assert done.stderr == "stock: stoker is off (`off` in its settings)\n"

    def test_not_off_for_a_program_that_uses_stoker(self, environ: dict[str, str], tmp_path: Path) -> None:
        served = forked(*STOKER, "--quiet", PROGRAMS / "library.py", environ=environ, cwd=tmp_path)
        assert len(served.stdout.splitlines()) == 3
        assert "torch.utils.data.dataloader" not in served.stdout

    def test_off_below_another_run(self, environ: dict[str, str], tmp_path: Path) -> None:
        command = [sys.executable, *STOKER, "-c", self.TEXT]
        outer = f"import subprocess; subprocess.run({command!r}, env={{**__import__('os').environ, 'STOKER_OFF': '1'}})"
        done = python(*STOKER, "-c", outer, environ=environ, cwd=tmp_path)
        assert done.stdout == f"None {SOURCE} False\n"

    @pytest.mark.parametrize("flag", ["-E", "-I"])
    def test_python_that_ignores_its_environment(self, flag: str, environ: dict[str, str], tmp_path: Path) -> None:
        main = f"import sys; sys.path.append({SOURCE!r}); from stoker.cli.main import main; sys.exit(main())"
        (tmp_path / "stoker_command").write_text(main)
        done = python(flag, "stoker_command", "run", "-c", "print(1)", environ=environ, cwd=tmp_path)
        assert done.returncode == 2
        assert "-E" in done.stderr
        done = python(flag, "stoker_command", "run", "--off", "-c", "print(1)", environ=environ, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "1\n")

    def test_stoker_seen_only_from_the_current_directory(self, environ: dict[str, str], tmp_path: Path) -> None:
        del environ["PYTHONPATH"]
        here = tmp_path / "source"
        here.mkdir()
        (here / "stoker").symlink_to(Path(SOURCE) / "stoker")
        done = python(*STOKER, "-c", "print(1)", environ=environ, cwd=Path(SOURCE))
        served = done.returncode == 0 and done.stdout == "1\n"  # where the tested stoker is an installed one
        assert served or (done.returncode == 2 and f"PYTHONPATH={SOURCE}" in done.stderr)


def write_small_torch(folder: Path) -> None:
    """Writes a package that imports its parts in torch's order: the loaders in the middle of its own import."""
    data = folder / "torch" / "utils" / "data"
    data.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(
        "from time import sleep\nsleep(0.01)\nfrom torch.utils.data import DataLoader\ncomplete = True\n"
    )
    (folder / "torch" / "utils" / "__init__.py").write_text("")
    (data / "__init__.py").write_text("from torch.utils.data.dataloader import DataLoader\n")
    (data / "dataloader.py").write_text("class DataLoader: pass\n")


class TestCommandLine:
    def test_refused_values_end_with_status_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli_run.main(["--workers", "-3", "train.py"]) == 2
        assert "`workers` must be a whole number" in capsys.readouterr().err

    def test_help_names_every_setting(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli_run.main(["--help"]) == 0
        text = capsys.readouterr().out
        assert all(f"--{key.name} " in text for key in cli_run.KEYS)


class TestNames:
    @pytest.mark.parametrize(
        ("program", "name"),
        [
            (["a/train.py", "-m"], "train"),
            (["-m", "pkg.train"], "pkg.train"),
            (["-mpkg"], "pkg"),
            (["folder/"], "folder"),
            (["app.pyz"], "app"),
            (["my job (2).py"], "my_job_2"),
            (["-"], "stdin"),
            (["-c", "print(1)"], "command"),
            (["..."], "program"),
        ],
    )
    def test_program_name(self, program: list[str], name: str) -> None:
        assert launch.program_name(program) == name

    def test_chosen_folder_is_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        name = launch.run_name(["t.py"], {})
        assert launch.run_folder("runs/a", name) == str(tmp_path / "runs" / "a")
        own = launch.run_folder(None, name)
        assert re.fullmatch(rf"{tmp_path}/stoker-runs/\d{{8}}-\d{{6}}-t-{os.getpid()}", own)

    def test_flags_are_taken_verbatim(self) -> None:
        words = [
            "python",
            "-uW",
            "error",
            "-X",
            "dev",
            "--check-hash-based-pycs",
            "never",
            "-Om",
            "stoker",
            "run",
            "-q",
        ]
        assert launch.interpreter_flags(words) == [
            "-uW",
            "error",
            "-X",
            "dev",
            "--check-hash-based-pycs",
            "never",
            "-O",
        ]
        assert launch.interpreter_flags(["python", "-B", "/bin/stoker", "run", "-u"]) == ["-B"]
        assert launch.interpreter_flags(["python"]) == []


class TestEnvironment:
    def test_served_and_plain_are_inverse(self) -> None:
        active = Active(settings=RunSettings.of(workers=3), run_dir="/r", argv=())
        for path in (None, "a", "a::b"):
            environ = {"HOME": "/h"} | ({} if path is None else {"PYTHONPATH": path})
            served = launch.served_environment(environ, active)
            again = launch.served_environment(served, active)
            assert again == served
            assert served["PYTHONPATH"].split(os.pathsep)[0] == launch.SITE_DIR
            assert launch.plain_environment(served) == environ

    def test_active_survives_the_environment(self) -> None:
        active = Active(
            settings=RunSettings.of(workers=3, quiet=True), run_dir="/r", run_id="r-1", pid=7, argv=tuple(sys.argv)
        )
        assert Active.from_environment({"STOKER_ACTIVE": active.to_environment()}) == active
