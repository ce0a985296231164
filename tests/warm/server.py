"""A process that has torch loaded and becomes, in a fork of itself, each program that it is asked to run.

Started with the descriptor of a socket and the names of modules to load. A request is a :class:`Request`, with the
program's three standard streams and a pipe, into which its process id and in the end its wait status are written.
Whatever a program could see of the difference to a start by ``exec`` is made as python's own start would have it, but
for ``sys.flags``, the seed of hashes and what is loaded already.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import io
import itertools
import os
import pickle
import runpy
import selectors
import signal
import socket
import sys
import types
from collections.abc import Sequence
from typing import NoReturn

from tests.warm import nested
from tests.warm.starting import HIGH, NUMBERS, TORCHRUN, Request


def main() -> None:
    """Serves until the other end of the socket is closed; returns in forks, which have become programs by then."""
    control = socket.socket(fileno=int(sys.argv[1]))
    modules = sys.argv[2].split(",")
    base = [entry for entry in sys.path if entry not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is loaded stays: programs that collect do not look at it
    request, streams = _serve(control)
    _run(_take_over(request, streams, base[1:]))


def _serve(control: socket.socket) -> tuple[Request, list[int]]:
    """What a fork is to become; in the server itself it does not return."""
    watched = selectors.DefaultSelector()
    watched.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.data is not None:
                pid, status_pipe = key.data
                _, status, used = os.wait4(pid, 0)
                _send(status_pipe, status, used.ru_utime + used.ru_stime)
                watched.unregister(key.fd)
                os.close(key.fd)
                os.close(status_pipe)
                continue
            data, handles, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not data:
                os._exit(0)
            *streams, status_pipe = handles
            begun, begins = os.pipe()
            if not (pid := os.fork()):
                watched.close()
                control.close()
                request = pickle.loads(data)
                if request.new_session:
                    os.setsid()
                os.close(begins)
                return request, streams
            os.close(begins)
            os.read(begun, 1)  # nobody is told of it before it can be signalled as a group
            os.close(begun)
            _send(status_pipe, pid)
            watched.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status_pipe))
            for stream in streams:
                os.close(stream)


def _send(pipe: int, number: int, processor_s: float = 0.0) -> None:
    try:
        os.write(pipe, NUMBERS.pack(number, processor_s))
    except BrokenPipeError:
        pass  # whoever asked does not wait for it


def _take_over(request: Request, streams: list[int], base: list[str]) -> list[str]:
    """Makes this process what a new python would be at the beginning of the program; the words that name it."""
    if request.new_session and os.getsid(0) != os.getpid():
        os.setsid()
    if request.is_trace:
        from stoker.core.processes.parents import die_with  # other programs begin without stoker

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with(os.getppid())
    given = [fcntl.fcntl(stream, fcntl.F_DUPFD, HIGH) for stream in streams]
    os.closerange(3, HIGH)
    for number, stream in zip((0, 1, 2, *request.kept), given, strict=True):
        os.dup2(stream, number)
    os.closerange(HIGH, 1 << 16)
    os.chdir(request.cwd)
    argv, env = list(request.argv), dict(request.env)
    if words_of(argv)[:3] == ["-m", "stoker", "run"]:
        argv, env = _launched(request, base)
    ready = _ready(pythons_of(words_of(argv)), base)
    _enter(argv, env, base)
    nested.start_in(ready)
    return words_of(argv)


def _ready(number: int, base: list[str]) -> list[tuple[int, socket.socket]]:
    """Children of this process that wait to become pythons, each with the socket by which it is told."""
    ready: list[tuple[int, socket.socket]] = []
    for _ in range(number):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not (pid := os.fork()):
            for end in (ours, *(end for _, end in ready)):
                end.close()  # before others get their numbers
            _run(_take_over(*_told(theirs), base))
            sys.exit()
        theirs.close()
        ready.append((pid, ours))
    return ready


def _told(control: socket.socket) -> tuple[Request, list[int]]:
    """What a process that was kept ready becomes: a child of the program that starts it, as it would be by `exec`."""
    descriptor = os.dup2(control.detach(), 3)
    os.closerange(4, 1 << 16)
    nothing = os.open(os.devnull, os.O_RDWR)  # the program's own streams are not held open
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    with socket.socket(fileno=descriptor) as control:
        data, streams, _, _ = socket.recv_fds(control, 1 << 20, 8)
        if not data:
            os._exit(0)
    return pickle.loads(data), streams


def words_of(argv: Sequence[str]) -> list[str]:
    """A command without python and its option `-u`."""
    return list(argv[2:] if argv[1:2] in (["-u"], ("-u",)) else argv[1:])


def pythons_of(words: Sequence[str]) -> int:
    """How many pythons a program is expected to start: a command of stoker one, torchrun its ranks."""
    if TORCHRUN in words:
        named = [word.partition("=")[2] or after for word, after in itertools.pairwise(words) if _names_ranks(word)]
        return int(named[0]) if named else 1
    return int(words[:2] == ["-m", "stoker"])


def _names_ranks(word: str) -> bool:
    return word.partition("=")[0].replace("_", "-") == "--nproc-per-node"


def _enter(argv: list[str], env: dict[str, str], base: list[str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    _tell_the_kernel(argv, env)
    sys.orig_argv[:] = argv
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    if env.get("PYTHONUNBUFFERED") or argv[1] == "-u":
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(write_through=True)
    sys.path[:] = [*filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *base]
    sys.path_importer_cache.clear()  # directories were listed long ago
    if (tempfile := sys.modules.get("tempfile")) is not None:
        tempfile.tempdir = None
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise


def _launched(request: Request, base: list[str]) -> tuple[list[str], dict[str, str]]:
    """What ``stoker run`` becomes: found in a fork, for what it loads is gone when it has become the program."""
    ours, theirs = os.pipe()
    pid, launcher = os.getpid(), os.fork()
    if launcher:
        os.close(theirs)
        with open(ours, "rb") as pipe:
            found = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])
        if not found:
            os._exit(status)  # there was nothing to run, and it has said why
        return pickle.loads(found)
    os.close(ours)
    ready = _ready(int("--fit" in request.argv), base)  # it traces the program

    def execve(_: str, argv: Sequence[str], env: dict[str, str]) -> NoReturn:
        with open(theirs, "wb") as pipe:
            pickle.dump((list(argv), dict(env)), pipe)
        os._exit(0)

    os.getpid = lambda: pid
    os.execve = execve
    _enter(list(request.argv), request.env, base)
    nested.start_in(ready)
    _run(words_of(request.argv))
    sys.exit()


def _run(words: Sequence[str]) -> None:
    """Runs a file, ``-m`` module or ``-c`` text as the main module; ends as python would where it fails."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    try:
        if words[0] == "-m":
            sys.argv[:] = list(words[1:])
            sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # what python itself calls
        else:
            _run_text(words, main)
    except SystemExit:
        raise
    except BaseException as error:
        _end(error)


def _run_text(words: Sequence[str], main: types.ModuleType) -> None:
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
        return
    sys.argv[:] = list(words)
    path = os.path.abspath(words[0])
    sys.path.insert(0, os.path.dirname(path))
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    with open(path, "rb") as file:
        text = file.read()
    exec(compile(text, path, "exec"), main.__dict__)


def _end(error: BaseException) -> NoReturn:
    """Says what python says of an exception that nobody caught, without the lines of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.excepthook(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt  # python ends itself by the signal, after what it does at its end
    sys.exit(1)


def _tell_the_kernel(argv: Sequence[str], env: dict[str, str]) -> None:
    """Has ``/proc`` show the program's arguments and environment instead of this server's, where they have room.

    They are read from the process's own memory, between addresses that stand in ``/proc/self/stat`` (proc(5)).
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    places = [int(field) for field in fields[45:49]]
    for (start, end), entries in (
        (places[:2], argv),
        (places[2:], [f"{name}={value}" for name, value in env.items()]),
    ):
        data = b"".join(os.fsencode(entry) + b"\0" for entry in entries)
        assert len(data) <= end - start, "a longer `ROOM` is needed"
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, data, len(data))
