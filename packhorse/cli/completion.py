"""Scripts that teach a shell to complete our words: `packhorse completion bash`."""

from __future__ import annotations

import sys

import click
from click.shell_completion import FishComplete, ShellComplete, ZshComplete

from packhorse.cli.bash import WholeWordsComplete
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import paint, say
from packhorse.cli.powershell import PowerShellComplete

_SHELLS = {
    "bash": 'add to ~/.bashrc:  eval "$(packhorse completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(packhorse completion zsh)"',
    "fish": "write to a file:  packhorse completion fish > ~/.config/fish/completions/packhorse.fish",
    "powershell": "add to $PROFILE:  packhorse completion powershell | Out-String | Invoke-Expression",
}
_KINDS = {"bash": WholeWordsComplete, "zsh": ZshComplete, "fish": FishComplete, "powershell": PowerShellComplete}


@command("completion", "packhorse completion bash", 'eval "$(packhorse completion zsh)"')
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(invocation: Invocation, shell: str) -> None:
    """Print a script for this shell. With it, the Tab key offers commands, options, and what the storage knows: jobs,
    queues, tasks, schedules, workers."""
    kind: type[ShellComplete] = _KINDS[shell]
    # Not its own `source`: that of bash asks for the version of the bash that is installed here.
    script = ShellComplete.source(kind(click.Command("packhorse"), {}, "packhorse", "_PACKHORSE_COMPLETE"))
    if invocation.as_json:
        invocation.print_json({"shell": shell, "script": script})
        return
    say(script)
    if sys.stdout.isatty():
        invocation.note(paint(_SHELLS[shell], "dim", err=True))
