"""Prints in how many of its children, of every kind, the hook waits for torch."""

import multiprocessing
import os
import subprocess
import sys

STATE = """
import sys
hook = sys.modules.get("stoker.run.hook")
print(hook is not None and hook.is_armed())
"""


def state():
    hook = sys.modules.get("stoker.run.hook")
    return hook is not None and hook.is_armed()


def report(queue):
    queue.put((state(), [entry for entry in sys.path if "stoker" in entry and entry.endswith("site")]))


def child(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=report, args=(queue,))
    process.start()
    answer = queue.get()
    process.join()
    return answer


def interpreter(*flags, **environ):
    command = [sys.executable, *flags, "-c", STATE]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True)


def main():
    print("here", state())
    for method in ("fork", "spawn", "forkserver"):
        print(method, *child(method))
    for flags in ((), ("-I",), ("-E",), ("-S",), ("-s",)):
        done = interpreter(*flags)
        print("interpreter", *flags, done.stdout.strip(), done.stderr.strip(), done.returncode)
    done = interpreter(STOKER_DATA_WORKER="1")
    print("data worker", done.stdout.strip(), done.stderr.strip(), done.returncode)


if __name__ == "__main__":
    main()
