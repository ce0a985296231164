import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from stoker.core.processes import forking
from stoker.core.processes.forking import ForkedLock, Owner, at_fork, per_process


def in_child(work: Callable[[], object]) -> bool:
    """Whether a forked child found it true, without an exception."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def taken_by_another(lock: ForkedLock, meanwhile: Callable[[], bool]) -> bool:
    taken, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    try:
        return meanwhile()
    finally:
        go.set()
        holder.join()


def is_free(lock: ForkedLock) -> bool:
    if not lock._lock.acquire(timeout=0.2):
        return False
    lock._lock.release()
    return True


class Listener:
    def __init__(self, said: list[str], name: str) -> None:
        self.said, self.name = said, name

    def hear(self) -> None:
        self.said.append(self.name)

    def fail(self) -> None:
        raise OSError(self.name)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No calls but those of the test."""
    monkeypatch.setattr(forking, "_calls", {})


def test_a_lock_that_another_thread_holds_is_free_in_a_child_and_before_anything_is_called() -> None:
    lock, free = ForkedLock(), []
    assert not taken_by_another(lock, lambda: is_free(lock))
    at_fork(lambda: free.append(is_free(lock)))
    assert taken_by_another(lock, lambda: in_child(lambda: is_free(lock) and free == [True]))


def test_a_child_forked_inside_leaves_a_lock_that_it_never_had() -> None:
    lock = ForkedLock()

    def leave() -> bool:
        lock.__exit__(None, None, None)
        return is_free(lock)

    with lock:
        assert in_child(leave)


def test_calls_are_made_in_their_order_and_only_while_their_objects_live() -> None:
    said: list[str] = []
    listeners = [Listener(said, name) for name in "abc"]
    for listener in listeners:
        at_fork(listener.hear)
    at_fork(lambda: said.append("function"))
    del listener, listeners[1]
    assert in_child(lambda: said == ["a", "c", "function"])
    assert said == []
    listeners.clear()
    assert len(forking._calls) == 1


def test_an_interpreter_that_ends_before_their_objects_says_nothing() -> None:
    program = """
from stoker.core.processes.forking import at_fork
class Holder:
    def __init__(self):
        self.me = self
        at_fork(self.renew)
    def renew(self): ...
held = Holder()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_grandchildren_are_told_as_well() -> None:
    said: list[str] = []
    listener = Listener(said, "a")
    at_fork(listener.hear)
    assert in_child(lambda: in_child(lambda: said == ["a", "a"]))


def test_one_that_fails_keeps_no_other_from_being_called(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first, second = Listener(said, "broken"), Listener(said, "whole")
    at_fork(first.fail)
    at_fork(second.hear)
    # Python's own writes to standard error.
    monkeypatch.setattr(sys, "unraisablehook", lambda shown: said.extend(map(repr, shown.exc_value.exceptions)))
    assert in_child(lambda: said == ["whole", "OSError('broken')"])


def test_each_process_makes_its_own_once_and_lets_go_of_none() -> None:
    class Made:
        def __init__(self) -> None:
            self.owner = Owner()

        def __del__(self) -> None:
            ended.append(self.owner.is_here)

    ended: list[bool] = []
    get = per_process(Made)
    mine = id(get())
    assert id(get()) == mine

    def make() -> bool:
        nonlocal get
        again = get()
        right = id(again) != mine and get() is again
        del get, again
        return right and ended == [True]  # its own, and not what it inherited

    assert in_child(make)
    assert id(get()) == mine


def test_threads_make_one() -> None:
    made: list[int] = []
    barrier = threading.Barrier(4)
    get = per_process(lambda: made.append(1) or len(made))

    def ask() -> None:
        barrier.wait()
        get()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_an_owner_is_here_and_not_in_a_child() -> None:
    owner = Owner()
    assert owner.is_here
    at_fork(lambda: seen.append(owner.is_here))
    seen: list[bool] = []
    assert in_child(lambda: not owner.is_here and seen == [False] and Owner().is_here)
    assert in_child(lambda: in_child(lambda: not owner.is_here))
    assert owner.is_here
