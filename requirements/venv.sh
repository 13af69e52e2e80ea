#!/bin/sh
# Makes .venv ready for the Makefile's targets, and ends at once when it already is.
#
# Needs Python 3.11 or newer with its venv module, nothing else. PYTHON=… names a particular interpreter.
set -eu
cd "$(dirname "$0")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
candidates=${PYTHON:-python3.13 python3.12 python3.11 python3}

# What .venv is made from. It starts with the place, because a .venv that was copied or moved points at the old one.
here=$(pwd)
wanted=$here$(printf '\n'; cksum pyproject.toml requirements/dev.txt)

complain() {
    printf '\n' >&2
    printf '%s\n' "$@" >&2
    exit 1
}

works() {
    .venv/bin/python -m pip --version >/dev/null 2>&1
}

# Sets `python` to the first candidate that is new enough and can make environments. Each is run, not only looked
# for: a version manager leaves commands on PATH that do nothing but complain.
find_python() {
    bare=
    for python in $candidates; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 && return
        bare=${bare:-$python}
    done
    if [ -n "$bare" ]; then
        version=$("$bare" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        complain "$bare is Python $version, but its venv module is not complete (no ensurepip)." \
            "Install it:  Debian, Ubuntu: apt install python$version-venv" \
            "Or name another interpreter:  make PYTHON=/path/to/python3"
    fi
    complain "Packhorse needs Python 3.11 or newer; none of these is: $candidates" \
        "Install it:  Debian, Ubuntu: apt install python3 python3-venv   Fedora: dnf install python3.12" \
        "             macOS: brew install python@3.12" \
        "Or name an interpreter:  make PYTHON=/path/to/python3"
}

ready=$(cat .venv/.ready 2>/dev/null) || ready=
if [ "$ready" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi

if [ "${ready%%
*}" != "$here" ] || ! works; then
    find_python
    echo "Making .venv with $("$python" --version) …"
    "$python" -m venv --clear .venv || complain "$python could not make .venv; its own words are above."
else
    echo "Bringing .venv up to date …"
fi

.venv/bin/python -m pip install -qq --constraint requirements/dev.txt --editable '.[dev]' ||
    complain "The packages could not be installed; pip's own words are above." \
        "Is there a network? pip's usual settings (PIP_INDEX_URL, PIP_FIND_LINKS …) are respected."
printf '%s\n' "$wanted" >.venv/.ready
