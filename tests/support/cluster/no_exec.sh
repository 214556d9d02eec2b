# Makes tmpfs mounts noexec and other mounts read-only, so that a file that can be written cannot be executed.
while read -r _ place type _; do
    mountpoint -q "$place" || continue # It lies below what the host has covered.
    case $type in
    proc | sysfs | cgroup* | devpts | mqueue) ;;
    tmpfs | devtmpfs) mount -o remount,bind,noexec "$place" ;;
    *) mount -o remount,bind,ro "$place" ;;
    esac
done </proc/self/mounts
