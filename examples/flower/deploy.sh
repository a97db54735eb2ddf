#!/usr/bin/env bash
# A deployment on one computer, as it would be on many: a SuperLink with TLS, and a SuperNode with a registered key for
# each party. What each step does is in README.md.
#
#   ./deploy.sh WORK            all of it: up, run, down
#   ./deploy.sh WORK up         certificates and keys (if not there yet), SuperLink, registration, SuperNodes
#   ./deploy.sh WORK run [...]  start the app; arguments go to `flwr run`
#   ./deploy.sh WORK link       start the SuperLink (again)
#   ./deploy.sh WORK node NAME  start one party's SuperNode (again)
#   ./deploy.sh WORK down       stop what was started
#
# WORK is a folder for keys, logs and results. PARTIES and PORT (and the next ports, one per party) may be set.
set -euo pipefail
APP=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: deploy.sh WORK [up | run | link | node NAME | down]}"
WORK=$(cd "$1" && pwd)
PARTIES=${PARTIES:-north south east}
PORT=${PORT:-9393}
export FLWR_HOME=$WORK/flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 # Python packages are those installed here, on both sides

fail() { echo "deploy.sh: $*" >&2; exit 1; }

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; } # PORT

free() { answers "$1" && fail "port $1 is taken; set PORT to another" || true; } # PORT

start() { # NAME COMMAND...: in the background, in a group of its own, so that `down` stops all that it starts
    local name=$1; shift
    setsid "$@" >>"$WORK/logs/$name.log" 2>&1 </dev/null &
    echo $! >"$WORK/pids/$name"
}

sweep() { # TEXT: end what a SuperLink or SuperNode that was killed has left behind, of ours and with TEXT in its command
    local found
    for found in $(grep -lzxF "FLWR_HOME=$FLWR_HOME" /proc/[0-9]*/environ 2>/dev/null); do
        found=${found//[^0-9]/}
        { tr '\0' ' ' <"/proc/$found/cmdline" | grep -qF -- "$1" && kill -KILL "$found"; } 2>/dev/null || true
    done
}

port_of() { # NAME
    local k=1 party
    for party in $PARTIES; do [ "$party" = "$1" ] && break; k=$((k + 1)); done
    echo $((PORT + k))
}

make_keys() {
    mkdir -p "$WORK"/{keys,logs,pids,flwr}
    cd "$WORK/keys"
    if [ ! -e server.crt ]; then
        openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj "/CN=our own CA" -keyout ca.key -out ca.crt 2>/dev/null
        openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout server.key -out server.csr 2>/dev/null
        openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.crt \
            -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") 2>/dev/null
    fi
    local party
    for party in $PARTIES; do
        [ -e "$party" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$party" -f "$party"
    done
    cat >"$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "ours"

[superlink.ours]
address = "127.0.0.1:$PORT"
root-certificates = "$WORK/keys/ca.crt"
TOML
}

link() {
    sweep "--runtime-api-address 127.0.0.1:$PORT "
    free "$PORT"
    start superlink flower-superlink --host 127.0.0.1 --port "$PORT" --database "$WORK/state.db" \
        --ssl-ca-certfile "$WORK/keys/ca.crt" --ssl-certfile "$WORK/keys/server.crt" --ssl-keyfile "$WORK/keys/server.key" \
        --enable-supernode-auth
    until answers "$PORT"; do
        kill -0 "$(cat "$WORK/pids/superlink")" 2>/dev/null || fail "the SuperLink stopped; see $WORK/logs/superlink.log"
        sleep 0.2
    done
}

register() {
    local party
    for party in $PARTIES; do
        [ -e "$WORK/keys/$party.registered" ] && continue
        flwr supernode register "$WORK/keys/$party.pub" ours --name "$party" >"$WORK/keys/$party.registered" ||
            { cat "$WORK/keys/$party.registered" >&2; rm "$WORK/keys/$party.registered"; fail "$party was not registered"; }
    done
}

node() { # NAME
    [ -e "$WORK/keys/$1" ] || fail "there is no key of $1 in $WORK/keys; it should be one of $PARTIES"
    sweep "--runtime-api-address 127.0.0.1:$(port_of "$1") "
    free "$(port_of "$1")"
    start "$1" flower-supernode --superlink "127.0.0.1:$PORT" --root-certificates "$WORK/keys/ca.crt" \
        --auth-supernode-private-key "$WORK/keys/$1" --host 127.0.0.1 --port "$(port_of "$1")" \
        --node-config "name=\"$1\" state=\"$WORK/disk-of-$1\""
}

up() {
    make_keys
    link
    register
    local party
    for party in $PARTIES; do node "$party"; done
}

run() {
    touch "$WORK/begun"
    flwr run "$APP" ours --stream --run-config "out=\"$WORK/out\"" "$@"
    [ "$WORK/out/result.json" -nt "$WORK/begun" ] || fail "the run did not finish; see $WORK/out/events.jsonl and what is said above"
}

down() {
    local file group
    for file in "$WORK"/pids/*; do
        [ -e "$file" ] || continue
        group=$(cat "$file")
        kill -TERM -- "-$group" 2>/dev/null || true
        for _ in $(seq 50); do kill -0 -- "-$group" 2>/dev/null || break; sleep 0.1; done
        kill -KILL -- "-$group" 2>/dev/null || true
        rm "$file"
    done
    sweep "/fl" # flower-*, flwr-*
}

case ${2:-all} in
all) trap down EXIT; up; run ;;
up | link | down) "$2" ;;
run) shift 2; run "$@" ;;
node) node "${3:?usage: deploy.sh WORK node NAME}" ;;
*) fail "unknown step $2; it should be up, run, link, node NAME or down" ;;
esac
