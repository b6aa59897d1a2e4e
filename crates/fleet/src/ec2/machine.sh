# What stands above is this machine's own; from here on all machines do the same: fetch the program where the image has it not, run the
# executor, end it when the machine has to go, and end the machine when the executor has ended. It needs sh, curl and
# sha256sum. What it does is written to $log.
set -u
umask 077
log=${log:-/var/log/modelless-machine.log}
going="$log.going"
# The disk is not to fill up: what is older than this many bytes is in $log.1, and what is older than that is gone.
log_most=50000000
export HOME="${HOME:-/root}"

say() { echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $*" >>"$log"; }

ask_metadata() {
    token=$(curl -fsS -m 5 -X PUT -H 'x-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token" 2>/dev/null) &&
        curl -fsS -m 5 -H "x-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/$1" 2>/dev/null
}

# Tries up to sixty times, a second apart: networks and services come up after the machine.
patiently() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || return 1
        sleep 1
    done
}

put_secrets() {
    [ -n "$environment_text" ] && mkdir -p "$(dirname "$environment_file")" && printf '%s' "$environment_text" >"$environment_file"
    [ -n "$key_text" ] && mkdir -p "$(dirname "$key_file")" && printf '%s' "$key_text" >"$key_file"
    return 0
}

fetch_once() {
    curl -fsSL -m 300 -o "$program.part" "$fetch" 2>>"$log" &&
        echo "$fetch_sha256  $program.part" | sha256sum -c --status &&
        chmod 755 "$program.part" && mv "$program.part" "$program"
}

end_machine() {
    say "$1; this machine ends"
    shutdown -h now || poweroff -f
}

# EC2 says two minutes before it takes a machine back that it will. What the executor says is appended, so its file may be cut.
watch_for_the_end() {
    while sleep 2; do
        if [ "$(wc -c <"$log")" -gt "$log_most" ]; then
            cp "$log" "$log.1" && : >"$log"
        fi
        if ask_metadata spot/instance-action >"$going.part"; then
            mv "$going.part" "$going"
            say "EC2 takes this machine back ($(cat "$going")); draining"
            kill -TERM "$1"
            return
        fi
    done
}

run_executor() {
    (
        if [ -r "$environment_file" ]; then
            set -a
            . "$environment_file"
            set +a
        fi
        exec "$program" executor --set "cluster=$cluster" --set "listen=0.0.0.0:$port" --set "advertise=$address:$port" "$@"
    ) >>"$log" 2>&1 &
    node=$!
    watch_for_the_end "$node" &
    watcher=$!
    wait "$node"
    status=$?
    while kill -0 "$node" 2>/dev/null; do # a signal to this script ended the wait, not the node
        wait "$node"
        status=$?
    done
    kill "$watcher" 2>/dev/null
    return "$status"
}

be_a_node() {
    rm -f "$going"
    put_secrets
    if [ -n "$setup" ] && ! sh -c "$setup" >>"$log" 2>&1; then
        end_machine "its setup failed"
        return
    fi
    if [ -n "$fetch" ] && ! { mkdir -p "$(dirname "$program")" && patiently fetch_once; }; then
        end_machine "its program could not be fetched from $fetch"
        return
    fi
    find_address() { address=$(ask_metadata local-ipv4) && [ -n "$address" ]; }
    if ! patiently find_address; then
        end_machine "the metadata service does not tell its address"
        return
    fi
    node=''
    trap 'echo told to end >"$going"; kill -TERM "$node" 2>/dev/null' TERM
    starts=0
    while :; do
        starts=$((starts + 1))
        say "the executor starts at $address:$port"
        run_executor "$@"
        status=$?
        # What it was told to do it has done; what it cannot do it will not do the fourth time.
        if [ "$status" -eq 0 ] || [ -e "$going" ] || [ "$starts" -ge 3 ]; then
            break
        fi
        say "the executor ended with $status; it is started again"
        sleep 5
    done
    end_machine "the executor ended with $status"
}

# In parentheses, because a function would keep the output that it was called with open, and whoever reads that would wait for its end.
( be_a_node "$@" ) </dev/null >/dev/null 2>&1 &
