# Runs a program in a session of its own, and prints each piece of its output as a line of base64. The toolbox passes on lines
# of text and nothing else.
#
# $1 `input` for a standard input, whose pieces are lines of base64 up to a line with a point; then the program.
input=$1
shift
for tool in dd base64 tr; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "the image has no \`$tool\`, which commands need" >&2
        exit 127
    }
done
command -v setsid >/dev/null 2>&1 && set -- setsid "$@"

encode() {
    while :; do
        # One read, whatever its size.
        piece=$(dd bs=49152 count=1 2>/dev/null | base64 | tr -d '\n')
        [ "$piece" ] || break
        printf '%s\n' "$piece"
    done
}

decode() {
    while IFS= read -r line; do
        [ "$line" = . ] && break
        printf %s "$line" | base64 -d
    done
}

run() {
    if [ "$input" = input ]; then
        decode | "$@"
    else
        "$@" </dev/null
    fi
}

{
    run "$@" 2>&1 1>&3 3>&- | encode 1>&2 3>&-
} 3>&1 | encode
