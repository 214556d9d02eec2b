# What the mock commands have in common. Each does what the real one does as far as a launcher can tell,
# on the hosts of a cluster of tests; an option that it does not know is an error.
#
# MOCK_DIRECTORY has these files: "hosts", lines "NAME OPTIONS OF nsenter", one for each host; "calls", the
# words of all calls, each behind their number and with a NUL at its end; "output", that of the job.
set -u
name=${0##*/}

fail() {
    printf '%s: %s\n' "$name" "$1" >&2
    exit "${2:-255}"
}

# Notes the words of this call.
note() {
    exec 9>>"$MOCK_DIRECTORY/calls"
    flock 9
    printf '%s\0' "$(($# + 1))" "$name" "$@" >&9
    exec 9>&-
}

# on HOST WORDS...: becomes the words on the host, with this environment, in this directory if it is there.
on() {
    options=$(sed -n "s/^$1 //p" "$MOCK_DIRECTORY/hosts")
    [ -n "$options" ] || fail "there is no host $1"
    shift
    exec nsenter $options -- sh -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$PWD" "$@"
}

# The same; the process that is started, though not what it starts itself, ends with this one.
on_while_here() {
    host=$1
    shift
    on "$host" setpriv --pdeathsig KILL "$@"
}

# in_job PATTERN WORDS...: becomes the words with the environment of the job, not of who calls: of that
# there are only the variables whose names match.
in_job() {
    pattern=$1
    shift
    set -f
    IFS='
'
    set -- $(env | grep -E "^($pattern)") "$@"
    exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin "$@"
}

# Waits for these processes; the highest of their exit codes.
wait_all() {
    code=0
    for child; do
        wait "$child" || { ended=$?; [ "$ended" -le "$code" ] || code=$ended; }
    done
    return "$code"
}
