# Becomes the first process of a host: in its namespaces, which are new, it makes what a host has of its
# own, says "mounted", waits for a word (meanwhile it is given an interface), says "up", and stays for as
# long as its standard input is open. With it ends all that runs on the host.
#
# HOST_NAME, HOST_ADDRESS: its own.
# HOST_COVERS: lines "DIRECTORY PLACE": DIRECTORY is what PLACE is to be; in this order.
# HOST_KEPT: lines of directories that are to be seen where they are, below a PLACE too.
# HOST_COMMON: the directory with what all hosts of the cluster have in common.
# HOST_SSHD: the sshd to be started; empty for none.
set -eu
IFS='
'
echo "$HOST_NAME" >/proc/sys/kernel/hostname
for file in hosts nsswitch.conf; do
    mount --bind "$HOST_COMMON/$file" "/etc/$file"
done

# All is put together before anything is covered: what is covered cannot be reached any more.
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

# Nobody else waits for what loses its parent.
exec env --ignore-signal=CHLD cat >/dev/null
