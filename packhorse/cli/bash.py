"""The Tab key of bash, which breaks a word at a colon and replaces only what is behind it: the script, and its words.

`completion` prints the script; `main` imports this module when such a script has called the program.
"""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, add_completion_class, split_arg_string

# Bash hands over the part of the word that it will replace as $2, which is the breaking character itself where nothing
# is behind it. So what precedes that part in the whole word is taken off the answers, wherever bash breaks words.
_SCRIPT = """\
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} part=$2 before answers kind value
    COMPREPLY=()
    [[ $part == [:=] ]] && part=
    before=${line##*[[:space:]]}
    before=${before%%"$part"}
    answers=$(env COMP_LINE="$line" %(complete_var)s=bash_complete "$1")
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                COMPREPLY+=("${value#"$before"}")
                [[ $value == *[:.] ]] && compopt -o nospace
                ;;
        esac
    done <<< "$answers"
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class WholeWordsComplete(BashComplete):
    """The line up to the cursor comes as it was typed, and answers are whole words. A script of an earlier version,
    which a shell may still have, sends the words apart."""

    source_template = _SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("COMP_LINE")
        if line is None:
            return super().get_completion_args()
        words = split_arg_string(line)[1:]
        return (words, "") if not words or line[-1:].isspace() else (words[:-1], words[-1])
