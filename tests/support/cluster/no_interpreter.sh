# An interpreter that can make system calls could do without a file: there is none.
for place in /usr/bin /usr/local/bin; do
    set -- $(cd "$place" && find . -name 'perl*' -o -name 'python*')
    [ $# -eq 0 ] || hide "$place" "$@"
done
