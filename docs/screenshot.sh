#!/bin/sh
# Make docs/overview.png: a made-up shop, the web in front of it, and a Chromium that looks. `make screenshot` runs it.
set -eu
python=${PYTHON:-python3}
folder=$(mktemp -d)
url="sqlite:///$folder/shop.db"
here=$(dirname "$0")
trap 'kill $shop $web 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT

"$python" -m packhorse fakedata --url "$url" --live >"$folder/shop.log" &
shop=$!
web=
until grep -q "It goes on" "$folder/shop.log"; do kill -0 $shop; sleep 1; done
"$python" -m packhorse web --url "$url" --port 0 2>"$folder/web.log" &
web=$!
until grep -q "Packhorse is at" "$folder/web.log"; do kill -0 $web; sleep 1; done
address=$(sed -n 's/.*is at \(http[^ ]*\).*/\1/p' "$folder/web.log")
sleep 5
chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,850 --timeout=4000 \
    --screenshot="$here/overview.png" "$address" 2>/dev/null
