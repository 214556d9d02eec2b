# Hides the interpreters that can make system calls: they could run a program without an executable file.
for place in /usr/bin /usr/local/bin; do
    set -- $(cd "$place" && find . -name 'perl*' -o -name 'python*')
    [ $# -eq 0 ] || hide "$place" "$@"
done
