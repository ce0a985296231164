"""Ends in the way that its first argument names."""

import atexit
import os
import signal
import sys
import threading
import time


class Failure(Exception):
    """Raised by this program."""


def fail():
    try:
        raise ValueError("first")
    except ValueError as error:
        raise Failure("second") from error


def late_threads():
    released = threading.Event()

    def work():
        released.wait()
        print("thread sees", sys.modules["__main__"].__file__, threading.main_thread().is_alive(), flush=True)

    threading.Thread(target=work, name="late").start()
    atexit.register(lambda: print("atexit registered first", __name__, flush=True))
    atexit.register(lambda: print("atexit registered second", Failure, flush=True))
    threading.Timer(0.05, released.set).start()
    print("end of main", flush=True)


def wait(handler):
    if handler:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print("ready", flush=True) or time.sleep(60)  # one line, so that a signal finds it wherever it comes


WAYS = {
    "exit 0": lambda: sys.exit(0),
    "exit 3": lambda: sys.exit(3),
    "exit text": lambda: sys.exit("no luck"),
    "exception": fail,
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "_exit": lambda: os._exit(7),
    "late threads": late_threads,
    "wait": lambda: wait(handler=False),
    "wait with handler": lambda: wait(handler=True),
}

if __name__ == "__main__":
    atexit.register(lambda: print("atexit", flush=True))
    WAYS[sys.argv[1]]()
