# Functions that the mock commands share. Each command behaves, as far as a launcher can tell, like the real
# one, on the hosts of a cluster of tests. An unknown option is an error.
#
# MOCK_DIRECTORY has these files: "hosts", a line "NAME OPTIONS OF nsenter" for each host; "calls", for each
# call the number of its words and the words, each followed by a NUL; "output", the output of the job.
set -u
name=${0##*/}

fail() {
    printf '%s: %s\n' "$name" "$1" >&2
    exit "${2:-255}"
}

# Appends the words of this call to "calls".
note() {
    exec 9>>"$MOCK_DIRECTORY/calls"
    flock 9
    printf '%s\0' "$(($# + 1))" "$name" "$@" >&9
    exec 9>&-
}

# on HOST WORDS...: executes the words on the host, with this environment, in this directory if it exists
# there.
on() {
    options=$(sed -n "s/^$1 //p" "$MOCK_DIRECTORY/hosts")
    [ -n "$options" ] || fail "there is no host $1"
    shift
    exec nsenter $options -- sh -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$PWD" "$@"
}

# Like on, but the started process is killed when this process exits. Its own children are not.
on_while_here() {
    host=$1
    shift
    on "$host" setpriv --pdeathsig KILL "$@"
}

# in_job PATTERN WORDS...: executes the words with the environment of the job. Of the caller's environment,
# only the variables whose names match PATTERN are passed on.
in_job() {
    pattern=$1
    shift
    set -f
    IFS='
'
    set -- $(env | grep -E "^($pattern)") "$@"
    exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin "$@"
}

# Waits for these processes; returns the highest of their exit codes.
wait_all() {
    code=0
    for child; do
        wait "$child" || { ended=$?; [ "$ended" -le "$code" ] || code=$ended; }
    done
    return "$code"
}
