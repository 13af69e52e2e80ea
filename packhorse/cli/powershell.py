"""The Tab key of PowerShell, which click does not know: the script, and how the words go to and fro.

`completion` prints the script; `main` imports this module when such a script has called the program.
"""

from __future__ import annotations

import os

from click.shell_completion import CompletionItem, ShellComplete, add_completion_class

_SCRIPT = """\
Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $before = $commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition }
    try {
        $Env:%(complete_var)s = 'powershell_complete'
        $Env:COMP_WORDS = ($before | ForEach-Object { $_.Extent.Text.Trim([char[]]"'`"") }) -join "`n"
        $Env:COMP_CWORD = $wordToComplete.Trim([char[]]"'`"")
        %(prog_name)s | ForEach-Object {
            $value, $help = $_ -split "`t", 2
            $shown = if ($help) { $help } else { $value }
            $text = if ($value -match '[^\\w.:=/@%%+-]') { "'" + $value.Replace("'", "''") + "'" } else { $value }
            [System.Management.Automation.CompletionResult]::new($text, $value, 'ParameterValue', $shown)
        }
    } finally {
        Remove-Item Env:%(complete_var)s, Env:COMP_WORDS, Env:COMP_CWORD -ErrorAction SilentlyContinue
    }
}
"""


@add_completion_class
class PowerShellComplete(ShellComplete):
    """Words come one on a line, the program's name first; answers go so, each with its help behind a tab. Where files
    are wanted nothing is answered: PowerShell offers those itself."""

    name = "powershell"
    source_template = _SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        words = os.environ.get("COMP_WORDS", "").split("\n")
        return words[1:], os.environ.get("COMP_CWORD", "")  # an empty variable is none in PowerShell

    def complete(self) -> str:
        found = self.get_completions(*self.get_completion_args())
        return "\n".join(self.format_completion(item) for item in found if item.type == "plain")

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.value}\t{' '.join(item.help.split())}" if item.help else str(item.value)
