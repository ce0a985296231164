"""`stoker run [options] script.py [args…]`: reads stoker's own options and passes the rest, unchanged, to python."""

from __future__ import annotations

import os

from stoker.cli.command_line import CommandOption, check_program, split
from stoker.cli.errors import refuse
from stoker.core.errors import ConfigError, StokerError
from stoker.core.saying import say
from stoker.run.launch import launch
from stoker.run.settings import KEYS, RunSettings, resolve

USAGE = "stoker run [options] script.py [args…]\n       stoker run [options] -m module [args…]"
_COMMAND = "stoker run"

OPTIONS = {
    key.name: CommandOption(
        rule=key.option.rule if key.option.form else "", default="on" if key.option.form.startswith("[") else None
    )
    for key in KEYS
}
"""Options by the name of their setting."""


def main(argv: list[str]) -> int:
    """Becomes the program, or runs its ranks and returns their status: 0 after `--help`, 2 for a wrong command line."""
    try:
        chosen, program = split(argv, _COMMAND, OPTIONS)
        if "help" in chosen:
            print(help_text())
            return 0
        check_program(program, _COMMAND)
        settings = resolve(chosen).settings
        if settings.sizes.range is None:
            try:
                fit_plan, expandable = _planned(settings, program)
            except KeyboardInterrupt:  # before the program is there to say it
                return 128 + 2
            launch(settings, program, fit_plan=fit_plan, expandable=expandable)
        if settings.fitting.fit != "off":
            raise ConfigError(
                "`--fit` must be of a program of one process, got `--training-workers`; leave one of them out"
            )
        # Imported here: other programs replace this process, and have no use for it.
        from stoker.run.elastic.launcher import run_ranks

        return run_ranks(settings, program)
    except StokerError as error:
        return refuse(error)


def _planned(settings: RunSettings, program: list[str]) -> tuple[str, bool]:
    """File with the plan that makes the program fit, empty without one; and whether CUDA's segments are to grow."""
    if settings.fitting.fit == "off" or settings.report.off:
        return "", False
    # Imported here: most programs have no use for it.
    from stoker.run.elastic.inner_program import traceable
    from stoker.run.fitting.planning import prepare

    def say_tracing() -> None:
        if not settings.report.quiet and os.environ.get("RANK", "0") == "0":
            words = traceable(program) or program
            name = " ".join(words[:2] if words[0] == "-m" else words[:1])
            say(f"tracing `{name}`, which computes nothing and prints unseen, to see what holds its memory")

    plan, file = prepare(settings, program, say_tracing)
    return file, settings.fitting.fit == "auto" and bool(plan and plan.changes and plan.of("expandable"))


def help_text() -> str:
    """Returns what `stoker run --help` prints."""
    lines = [f"usage: {USAGE}", "", "Runs a PyTorch program, unchanged, with its data loaders served by stoker.", ""]
    for key in KEYS:
        form, text = key.option.form, key.option.text
        option = f"--{key.name} or --{key.name}{form[1:-1]}" if form.startswith("[") else f"--{key.name} {form}".strip()
        lines.append(f"  {option:<34} {text}")
    lines += [
        "",
        "Everything after the script or module belongs to the program. Each option but --run-dir can also be set as",
        "STOKER_<NAME> in the environment, all of them in [tool.stoker] of pyproject.toml: see `stoker config show`.",
    ]
    return "\n".join(lines)
