#!/bin/sh
# Create or update .venv for the Makefile's targets. Exit immediately if it is up to date.
#
# Needs Python 3.11 or newer with its venv module. PYTHON=… selects an interpreter.
set -eu
cd "$(dirname "$0")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
candidates=${PYTHON:-python3.13 python3.12 python3.11 python3}

# What .venv is made from, beginning with its directory: a copied or moved .venv points at the old one.
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

# Set `python` to the first candidate that is new enough and can create environments. Run each candidate: a version
# manager leaves commands on PATH that only print an error.
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
    echo "Creating .venv with $("$python" --version) …"
    "$python" -m venv --clear .venv || complain "$python could not create .venv; its error is above."
else
    echo "Updating .venv …"
fi

.venv/bin/python -m pip install -qq --constraint requirements/dev.txt --editable '.[dev]' ||
    complain "The packages could not be installed; pip's error is above." \
        "Is there a network? pip's usual settings (PIP_INDEX_URL, PIP_FIND_LINKS …) are respected."
printf '%s\n' "$wanted" >.venv/.ready
