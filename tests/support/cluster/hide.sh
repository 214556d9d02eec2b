# Defines hide DIRECTORY NAME...: removes the names from the view of the directory, which becomes read-only.
hide() {
    place=$1
    shift
    # An overlay with whiteouts (character devices 0:0) for the names, above the directory itself. One overlay
    # has all names of a directory: the kernel limits how many overlays may be stacked.
    layer=/run/hidden/$(printf %s "$place" | tr / +)
    [ ! -d "$layer" ] || umount --lazy "$place"
    mkdir -p "$layer"
    for name; do
        mknod "$layer/$name" c 0 0
    done
    mount -t overlay -o "lowerdir=$layer:$place" overlay "$place"
}
