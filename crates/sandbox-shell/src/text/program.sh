# Runs a program in a session of its own, and waits for the end of its output.
#
# $1 `lines` for output that passes through a channel of text: each piece is a line of base64, behind `~` when it is packed;
# `exact` for output as it is.
# $2 `input` for a standard input, whose pieces are lines of base64 up to a line with a point; before a long one comes a line
# with `+` and its length.
# $3 the encoder, a program in Perl. Then the program.
form=$1 input=$2 encoder=$3
shift 3

# Much output: packed, for logs of text are slow.
packer='
import base64, os, zlib
packer = zlib.compressobj(1)
while piece := os.read(0, 65536):
    packed = packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    for at in range(0, len(packed), 2700):
        os.write(1, b"~" + base64.b64encode(packed[at : at + 2700]) + b"\n")'
command -v perl >/dev/null 2>&1 && has_perl=yes || has_perl=
# One program for both outputs. The command finds a session for itself.
[ "$form$input$has_perl" = linesnoneyes ] && exec perl -e "$encoder" "$packer" "$@"

for tool in dd base64 tr; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "the image has no \`$tool\`, which commands need" >&2
        exit 127
    }
done
command -v setsid >/dev/null 2>&1 && set -- setsid "$@"

encode() {
    [ "$form" = lines ] || exec cat
    [ "$has_perl" ] && exec perl -e "$encoder" "$packer" 2>/dev/null
    full=0
    while :; do
        # One read, whatever its size: a longer line would not be written at once.
        piece=$(dd bs=2700 count=1 2>/dev/null | base64 | tr -d '\n')
        [ "$piece" ] || break
        printf '%s\n' "$piece"
        if [ ${#piece} -lt 3600 ]; then
            full=0
            continue
        fi
        full=$((full + 1))
        [ $full = 4 ] && python3 -c 'import zlib' 2>/dev/null && exec python3 -c "$packer"
    done
}

decode() {
    while IFS= read -r line; do
        case $line in
            .) break ;;
            # A shell reads lines byte by byte.
            +*) read_exactly "${line#+}" | base64 -d ;;
            *) printf %s "$line" | base64 -d ;;
        esac
    done
}

read_exactly() {
    if dd iflag=fullblock count=0 </dev/null 2>/dev/null; then
        dd iflag=fullblock bs="$1" count=1 2>/dev/null
    else
        dd bs=1 count="$1" 2>/dev/null
    fi
}

# The standard error is for the program alone: a shell would say there that a signal has ended it.
run() {
    {
        if [ "$input" = input ]; then
            decode | (exec "$@" 2>&4 4>&-)
        else
            (exec "$@" </dev/null 2>&4 4>&-)
        fi
    } 4>&2 2>/dev/null
}

{
    run "$@" 2>&1 1>&3 3>&- | encode 1>&2 3>&-
} 3>&1 | encode
