# Runs a program in a session of its own, and waits for the end of its output.
#
# $1 `lines` for output that passes through a channel of text: each piece is a line of base64, behind `~` when it is packed;
# `exact` for output as it is.
# $2 `input` for a standard input, whose pieces are lines of base64 up to a line with a point; before a long one comes a line
# with `+` and its length. Then the program.
form=$1 input=$2
shift 2
for tool in dd base64 tr; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "the image has no \`$tool\`, which commands need" >&2
        exit 127
    }
done
command -v setsid >/dev/null 2>&1 && set -- setsid "$@"

# A longer line would not be written at once, and lines of both streams would be mixed in the log.
encode() {
    [ "$form" = lines ] || exec cat
    # One program for all pieces, where the image has one that starts fast. Its status is 9 at much output.
    if command -v perl >/dev/null 2>&1; then
        perl -e '
            $| = 1;
            $full = 0;
            while (sysread(STDIN, $piece, 2700)) {
                $line = pack("u", $piece);
                $line =~ s/^.//mg;
                $line =~ tr|\n||d;
                $line =~ tr|` -_|AA-Za-z0-9+/|;
                $rest = (3 - length($piece) % 3) % 3;
                substr($line, -$rest) = "=" x $rest if $rest;
                print "$line\n";
                $full = length($piece) == 2700 ? $full + 1 : 0;
                exit 9 if $full == 4;
            }' 2>/dev/null
        case $? in
            0) return ;;
            9) encode_much ;;
        esac
    fi
    full=0
    while :; do
        # One read, whatever its size.
        piece=$(dd bs=2700 count=1 2>/dev/null | base64 | tr -d '\n')
        [ "$piece" ] || break
        printf '%s\n' "$piece"
        if [ ${#piece} -lt 3600 ]; then
            full=0
            continue
        fi
        full=$((full + 1))
        [ $full = 4 ] && encode_much
    done
}

# Much output: one program for all of it, where the image has one; packed, for logs of text are slow.
encode_much() {
    if python3 -c 'import zlib' 2>/dev/null; then
        exec python3 -c '
import base64, os, zlib
packer = zlib.compressobj(1)
while piece := os.read(0, 65536):
    packed = packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    for at in range(0, len(packed), 2700):
        os.write(1, b"~" + base64.b64encode(packed[at : at + 2700]) + b"\n")'
    elif perl -MMIME::Base64 -e 1 2>/dev/null; then
        exec perl -MMIME::Base64 -e '
            $| = 1;
            while (sysread(STDIN, $piece, 2700)) { print encode_base64($piece, ""), "\n" }'
    fi
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
