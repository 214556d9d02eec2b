# The first process of a host, in new namespaces. It sets up the files that a host has of its own, prints
# "mounted", reads a line (meanwhile the test gives it an interface), prints "up", and runs until its standard
# input is closed. All processes on the host end with it.
#
# HOST_NAME, HOST_ADDRESS: the host's own.
# HOST_COVERS: lines "DIRECTORY PLACE": DIRECTORY is mounted on PLACE, in this order.
# HOST_KEPT: directories, one per line, that stay visible at their paths, also below a PLACE.
# HOST_COMMON: the directory with the files that all hosts of the cluster share.
# HOST_SSHD: the sshd to start; empty for none.
set -eu
IFS='
'
echo "$HOST_NAME" >/proc/sys/kernel/hostname
for file in hosts nsswitch.conf; do
    mount --bind "$HOST_COMMON/$file" "/etc/$file"
done

# Mount everything below the directories before any PLACE is covered: a covered directory is unreachable.
for cover in $HOST_COVERS; do
    directory=${cover%% *} place=${cover#* }
    case $directory in
    */home) ;; # The test reads and writes it.
    *) mount -t tmpfs tmpfs "$directory" ;;
    esac
    for kept in $HOST_KEPT; do
        case $kept in
        "$place"/*)
            mkdir -p "$directory${kept#"$place"}"
            mount --rbind "$kept" "$directory${kept#"$place"}"
            ;;
        esac
    done
done
for cover in $HOST_COVERS; do
    mount --rbind "${cover%% *}" "${cover#* }"
done
cd /

echo mounted
read -r _
ip -batch - <<END
link set lo up
address add $HOST_ADDRESS/16 broadcast + dev eth0
link set eth0 up
END
if [ -n "$HOST_SSHD" ]; then
    mkdir -p /run/sshd
    "$HOST_SSHD" -f "$HOST_COMMON/sshd_config" -E /run/sshd.log
fi
echo up

# This process has to reap orphans: no other process waits for them.
exec env --ignore-signal=CHLD cat >/dev/null
