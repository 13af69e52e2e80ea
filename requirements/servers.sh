#!/bin/sh
# Install the servers and the browser that the tests start. Exit immediately if nothing is missing.
#
# With apt-get (as root, or with sudo without a password) it installs what is missing; elsewhere it prints the packages.
# PACKHORSE_TEST_STORAGES=memory,sqlite needs no servers.
set -eu

storages=${PACKHORSE_TEST_STORAGES:-redis,postgres,mysql}
missing=

# need <Debian package> <program>…: one of the programs must be installed.
need() {
    package=$1
    shift
    for program; do
        command -v "$program" >/dev/null 2>&1 && return 0
    done
    missing="$missing $package"
}

# has <storage>: do the tests run on it?
has() {
    case ",$storages," in *",$1,"*) ;; *) return 1 ;; esac
}

if has redis; then need redis-server redis-server valkey-server; fi
if has postgres; then
    # Debian and Homebrew keep it off PATH; tests/postgres_server.py searches the same places.
    need postgresql initdb /usr/lib/postgresql/*/bin/initdb /usr/local/pgsql/bin/initdb \
        /opt/homebrew/opt/postgresql*/bin/initdb
fi
if has mysql; then need mariadb-server mariadbd /usr/sbin/mariadbd /usr/libexec/mariadbd; fi
need chromium chromium chromium-browser google-chrome  # tests/web/test_browser.py
needed=$missing
# The test with a pooler is skipped without one.
if has postgres; then need pgbouncer pgbouncer /usr/sbin/pgbouncer; fi
[ -n "$missing" ] || exit 0

as_root=
[ "$(id -u)" = 0 ] || as_root='sudo -n'
if command -v apt-get >/dev/null 2>&1 && $as_root true 2>/dev/null; then
    echo "Installing$missing …"
    # RUNLEVEL=1: do not start the packages' own services; the tests start private servers.
    # shellcheck disable=SC2086
    ($as_root apt-get -qq update && $as_root env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install --no-install-recommends $missing) >/dev/null && exit 0
fi
[ -n "$needed" ] || exit 0
printf '%s\n' "" "The tests need programs that are not installed:$needed" \
    "Install them:  Debian, Ubuntu: apt-get install$needed   Fedora: dnf install valkey postgresql-server mariadb-server chromium" \
    "               macOS: brew install redis postgresql mariadb, brew install --cask chromium" \
    "Or run without servers:  PACKHORSE_TEST_STORAGES=memory,sqlite make test" >&2
exit 1
