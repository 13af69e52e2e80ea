#!/bin/sh
# Make docs/overview.png: a made-up shop, the web in front of it, and a Chromium that looks. `make screenshot` runs it.
# It takes about a minute; on a loaded machine the shop takes several. Every wait ends, and says what it waited for.
set -eu
python=${PYTHON:-python3}
folder=$(mktemp -d)
url="sqlite:///$folder/shop.db"
here=$(dirname "$0")
shop=
web=

clean_up() {
    for child in $shop $web; do kill "$child" 2>/dev/null || true; done
    sleep 2
    for child in $shop $web; do kill -9 "$child" 2>/dev/null || true; done  # a page may be open still
    wait 2>/dev/null || true
    rm -rf "$folder"
}
trap clean_up EXIT

# Until this file says so, for so many seconds, as long as that process lives.
wait_for() {
    left=$4
    until grep -qs "$2" "$1"; do
        if ! kill -0 "$3" 2>/dev/null || [ "$left" -le 0 ]; then
            echo "screenshot: $5 did not come within $4 s, or ended; its last words:" >&2
            tail -n 5 "$1" >&2
            exit 1
        fi
        left=$((left - 1))
        sleep 1
    done
}

"$python" -m packhorse fakedata --url "$url" --live >"$folder/shop.log" 2>&1 &
shop=$!
wait_for "$folder/shop.log" "It goes on" "$shop" 600 "the shop"
"$python" -m packhorse web --url "$url" --port 0 >"$folder/web.log" 2>&1 &
web=$!
wait_for "$folder/web.log" "Packhorse is at" "$web" 60 "the web"
address=$(sed -n 's/.*is at \(http[^ ]*\).*/\1/p' "$folder/web.log")
sleep 5
# A page that goes on receiving never counts as loaded, so it gets some milliseconds, and more if it was still blank; and
# the browser as a whole 90 s. A blank picture is a few kilobytes.
for patience in 4000 15000 45000; do
    timeout -k 5 90 chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,850 --timeout="$patience" \
        --user-data-dir="$folder/chromium" --screenshot="$folder/overview.png" "$address" >"$folder/chromium.log" 2>&1 || {
        echo "screenshot: Chromium did not end within 90 s, or failed; its last words:" >&2
        tail -n 5 "$folder/chromium.log" >&2
        exit 1
    }
    size=$(wc -c <"$folder/overview.png")
    if [ "$size" -gt 50000 ]; then break; fi
done
if [ "$size" -le 50000 ]; then
    echo "screenshot: the page was still blank after $((patience / 1000)) s" >&2
    exit 1
fi
mv "$folder/overview.png" "$here/overview.png"
