"""Imports torch under the hook and reports the session's call, with a session that only takes notes."""

import sys
import threading
import types

from stoker.run import hook
from stoker.run.import_watch import ImportWatch

calls = []


def install(active):
    torch = sys.modules["torch"]
    calls.append(active)
    print("install", hasattr(torch.utils.data, "DataLoader"), "torch.utils.data.dataloader" in sys.modules)
    print("torch is whole", torch.complete)
    print("run", active.run_dir.rsplit("/")[-1], active.settings.scale.workers, active.argv)


session = types.ModuleType("stoker.run.modes")
session.install = install
sys.modules[session.__name__] = session


def at_once(function, count=8):
    barrier = threading.Barrier(count)

    def run():
        barrier.wait()
        function()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def import_torch():
    import torch.utils.data  # noqa: F401


if "early" in sys.argv:
    hook._finder.remove()
    hook._finder = None  # as in an interpreter that nothing has armed
    hook._unarmed.append(True)
    import_torch()

print("before", hook.is_armed(), hook.is_installed(), len(calls))
at_once(hook.arm)
print("finders", sum(isinstance(finder, ImportWatch) for finder in sys.meta_path))
at_once(import_torch)
print("after", hook.is_armed(), hook.is_installed(), len(calls))
print("finders", sum(isinstance(finder, ImportWatch) for finder in sys.meta_path))
for name in ("torch", "torch.utils.data", "torch.utils.data.dataloader"):
    module = sys.modules[name]
    print(name, type(module.__loader__).__name__, module.__loader__ is module.__spec__.loader, vars(module.__loader__))
