# Defines hide DIRECTORY NAME...: these are not in the directory any more, in which nothing can be changed.
hide() {
    place=$1
    shift
    # A layer of entries that say that there is no such file, above the one that has them. All of a
    # directory are in one: the kernel does not pile up many.
    layer=/run/hidden/$(printf %s "$place" | tr / +)
    [ ! -d "$layer" ] || umount --lazy "$place"
    mkdir -p "$layer"
    for name; do
        mknod "$layer/$name" c 0 0
    done
    mount -t overlay -o "lowerdir=$layer:$place" overlay "$place"
}
