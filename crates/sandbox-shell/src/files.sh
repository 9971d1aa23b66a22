# Handles files with programs of the image. Errors are reported by the statuses below, or by those programs.
#
# $1 the operation; then paths, plain after `=` or with every byte escaped for `%b` of `printf` after `%`; then the rest.
not_found=101 not_a_directory=102 is_a_directory=103 exists=104 is_a_link=105 not_regular=106 denied=107 lacking=108
inside_itself=109 not_empty=110 changed=111 too_many=112

decode() {
    case $1 in
        =*) decoded=${1#=} ;;
        *)
            decoded=$(printf '%bx' "${1#%}")
            decoded=${decoded%x}
            ;;
    esac
}

needs() {
    for program; do
        command -v "$program" >/dev/null 2>&1 || {
            echo "$program" >&2
            exit $lacking
        }
    done
}

is_there() { [ -e "$1" ] || [ -L "$1" ]; }

is_tree() { [ -d "$1" ] && [ ! -L "$1" ]; }

# Sets `upper` to the parent of a path, which may end in a slash.
above() {
    upper=$1
    while [ "${upper%/}" != "$upper" ]; do upper=${upper%/}; done
    upper=${upper%/*}
    upper=${upper:-/}
}

# Exits with the reason why a path does not exist.
absent() {
    above "$1/x"
    while [ "$upper" != / ]; do
        above "$upper"
        if [ -e "$upper" ]; then
            [ -d "$upper" ] || exit $not_a_directory
            [ -x "$upper" ] || exit $denied
            exit $not_found
        fi
    done
    exit $not_found
}

# Creates the missing parents of a path.
make_above() {
    above "$1"
    [ -d "$upper" ] && return
    (absent "$1")
    [ $? = $not_a_directory ] && exit $not_a_directory
    mkdir -p "$upper" || exit 1
}

must_be() {
    case $1 in
        */) [ ! -e "${1%/}" ] || [ -d "$1" ] || exit $not_a_directory ;;
    esac
    is_there "$1" || absent "$1"
}

# Requires the parent of a new entry.
must_have_parent() {
    above "$1"
    [ -d "$upper" ] || absent "$upper"
}

# Prints mode, size and time of each entry, its name, and the target of a link. Tools of small images have whole seconds.
describe() {
    stat -c '%f %s %.9Y' "$@" | {
        for entry; do
            read -r line || exit 1
            target=
            [ -L "$entry" ] && target=$(readlink "$entry"; echo x)
            target=${target%x}
            printf '%s\0%s\0%s\0' "$line" "${entry##*/}" "${target%?}"
        done
        ! read -r line
    } || exit $changed
}

list() {
    count=0 all=0
    set --
    for entry in "$path"/* "$path"/.[!.]* "$path"/..?*; do
        is_there "$entry" || continue
        set -- "$@" "$entry"
        count=$((count + 1)) all=$((all + 1))
        [ $all -le 100000 ] || exit $too_many
        [ $count -lt 200 ] && continue
        describe "$@"
        set --
        count=0
    done
    [ $count = 0 ] || describe "$@"
}

# Moves an entry to a path, never into a directory at that path.
move() {
    if [ -L "$2" ]; then rm -f "$2"; fi
    mv -f "$1" "$2"
}

# Merges a tree into a directory: with `check` it only checks that no entry is in the way.
merge() {
    for entry in "$2"/* "$2"/.[!.]* "$2"/..?*; do
        is_there "$entry" || continue
        there=$3/${entry##*/}
        if is_tree "$entry" && is_there "$there"; then
            is_tree "$there" || exit $exists
            (merge "$1" "$entry" "$there") || exit $?
        elif [ "$1" = check ]; then
            is_tree "$there" && exit $exists
        else
            move "$entry" "$there" || exit 1
        fi
    done
    return 0
}

verb=$1
decode "$2"
path=$decoded
case $verb in
    read | link)
        # $3 the first byte, $4 the number of bytes, or `all`. `link` reads all of a file of fewer than $3 bytes; a larger one it
        # links to $4 instead, where that is possible.
        needs cat head tail
        must_be "$path"
        [ -d "$path" ] && exit $is_a_directory
        [ -f "$path" ] || exit $not_regular
        [ -r "$path" ] || exit $denied
        if [ "$verb" = link ]; then
            size=$(stat -Lc %s "$path" 2>/dev/null)
            if [ "${size:-0}" -ge "$3" ]; then
                # Not the link that the path may be.
                { [ ! -L "$path" ] && ln "$path" "$4"; } 2>/dev/null || ln -s "$path" "$4" 2>/dev/null && echo at && exit
            fi
            echo ok
            exec cat "$path"
        fi
        echo ok
        [ "$4" = 0 ] && exit 0
        if [ "$3" = 0 ] && [ "$4" = all ]; then
            exec cat "$path"
        elif [ "$4" = all ]; then
            exec tail -c "+$(($3 + 1))" "$path"
        elif [ "$3" = 0 ]; then
            exec head -c "$4" "$path"
        else
            tail -c "+$(($3 + 1))" "$path" | head -c "$4"
        fi
        ;;
    write | place)
        # $3 mode, $4 append, $5 create parents, $6 the staging name, $7 the size or `-`, $8 the time of modification or `now`.
        # `place` only looks whether the file can be written: its content comes otherwise.
        needs cat mv rm chmod stat wc mkdir
        case $path in */) exit $is_a_directory ;; esac
        above "$path"
        if [ ! -d "$upper" ]; then
            [ "$5" = yes ] || absent "$upper"
            make_above "$path"
        fi
        [ -L "$path" ] && exit $is_a_link
        [ -d "$path" ] && exit $is_a_directory
        mode=$3
        if [ -e "$path" ]; then
            [ -f "$path" ] || exit $not_regular
            [ -w "$path" ] || exit $denied
        fi
        if [ "$verb" = place ]; then
            [ -w "$upper" ] && [ -x "$upper" ] || exit $denied
            exit 0
        fi
        if [ -e "$path" ]; then
            mode=$(stat -c %a "$path") || exit 1
        fi
        if [ "$4" = yes ]; then
            cat >>"$path" || exit 1
            chmod "$mode" "$path"
            exit
        fi
        staged=$upper/$6
        if ! { cat >"$staged" && chmod "$mode" "$staged"; }; then
            rm -f "$staged"
            exit 1
        fi
        # The file is written even if its time cannot be set.
        [ "$8" = now ] || touch -d "@$8" "$staged" 2>/dev/null
        [ "$7" = - ] && exit 0
        if [ "$(($(wc -c <"$staged")))" != "$7" ]; then
            rm -f "$staged"
            exit $changed
        fi
        move "$staged" "$path"
        ;;
    settle)
        # Makes a staged file the file: $3 the staging name, $4 the mode of a new file, $5 the size, $6 the time of modification or
        # `now`. A file that is there keeps its mode. Each program takes a millisecond, so one asks for all.
        above "$path"
        staged=$upper/$3 mode=$4 size=$5 time=$6
        [ -d "$path" ] && exit $is_a_directory
        set -- "$staged"
        [ ! -L "$path" ] && [ -f "$path" ] && set -- "$staged" "$path"
        found=$(stat -c '%a %s' "$@") || exit 1
        staged_mode=${found%% *} staged_size=${found#* }
        if [ $# = 2 ]; then
            mode=${found##*[!0-9 ]}
            mode=${mode%% *}
        fi
        [ "${staged_size%%[!0-9]*}" = "$size" ] || exit $changed
        [ "$staged_mode" = "$mode" ] || chmod "$mode" "$staged" || exit 1
        [ "$time" = now ] || touch -d "@$time" "$staged" 2>/dev/null
        move "$staged" "$path"
        ;;
    commit)
        above "$path"
        [ -d "$path" ] && exit $is_a_directory
        move "$upper/$3" "$path"
        ;;
    list)
        needs stat readlink
        must_be "$path"
        [ -d "$path" ] || exit $not_a_directory
        [ -r "$path" ] && [ -x "$path" ] || exit $denied
        list
        ;;
    stat)
        needs stat readlink
        must_be "$path"
        describe "$path"
        ;;
    make)
        needs mkdir
        [ -d "$path" ] && [ "$3" = yes ] && exit 0
        is_there "$path" && exit $exists
        if [ "$3" = yes ]; then
            make_above "$path"
            mkdir "$path"
        else
            must_have_parent "$path"
            mkdir "$path"
        fi
        ;;
    remove)
        needs rm
        must_be "$path"
        is_tree "$path" && [ "$3" != yes ] && exit $is_a_directory
        rm -rf "$path" </dev/null
        ;;
    mode)
        needs chmod
        must_be "$path"
        [ -L "$path" ] && exit $is_a_link
        chmod "$3" "$path"
        ;;
    rename)
        needs mv rm rmdir
        must_be "$path"
        decode "$3"
        must_have_parent "$decoded"
        case $decoded/ in "$path"/?*) exit $inside_itself ;; esac
        if is_tree "$decoded"; then
            is_tree "$path" || exit $is_a_directory
            rmdir "$decoded" 2>/dev/null || exit $not_empty
        elif is_tree "$path" && is_there "$decoded"; then
            exit $not_a_directory
        fi
        move "$path" "$decoded"
        ;;
    copy)
        needs cp mv rm chmod
        must_be "$path"
        decode "$3"
        must_have_parent "$decoded"
        if is_tree "$path"; then
            case $decoded/ in "$path"/?*) exit $inside_itself ;; esac
            is_there "$decoded" && exit $exists
        elif [ -L "$path" ] || [ -f "$path" ]; then
            is_tree "$decoded" && exit $is_a_directory
        else
            exit $not_regular
        fi
        staged=$upper/$4
        if cp -a "$path" "$staged"; then
            move "$staged" "$decoded"
            exit
        fi
        chmod -R u+rwx "$staged" 2>/dev/null
        rm -rf "$staged"
        exit 1
        ;;
    pack)
        needs tar head
        must_be "$path"
        [ -d "$path" ] || exit $not_a_directory
        [ -r "$path" ] && [ -x "$path" ] || exit $denied
        echo ok
        cd "$path" || exit 1
        # Small images cannot sort.
        sort=--sort=name
        tar $sort -cf /dev/null --files-from /dev/null 2>/dev/null || sort=
        for entry in * .[!.]* ..?*; do
            if is_there "$entry"; then exec tar $sort -cf - .; fi
        done
        # An empty archive.
        exec head -c 1024 /dev/zero
        ;;
    unpack)
        needs tar mkdir mv rm
        is_there "$path" && [ ! -d "$path" ] && exit $not_a_directory
        make_above "$path"
        [ -d "$path" ] || mkdir "$path" || exit 1
        mkdir -m 700 "$path/$3" || exit 1
        cd "$path/$3" && exec tar -xpof -
        ;;
    merge)
        (merge check "$path/$3" "$path") || exit $?
        (merge move "$path/$3" "$path") || exit $?
        rm -rf "${path:?}/$3"
        ;;
    drop)
        # Removes a staged entry.
        above "$path"
        for staged in "$upper/$3" "$path/$3"; do
            is_there "$staged" || continue
            chmod -R u+rwx "$staged" 2>/dev/null
            rm -rf "$staged"
        done
        # Removes the directory that was created for it.
        [ "$4" != yes ] || rmdir "$path" 2>/dev/null
        exit 0
        ;;
    find)
        needs find
        must_be "$path"
        [ -d "$path" ] || exit $not_a_directory
        [ -r "$path" ] && [ -x "$path" ] || exit $denied
        cd "$path" || exit 1
        if [ "$3" = names ]; then
            find . ! -path . -print0 2>/dev/null
            exit 0
        fi
        needs grep cut
        # Prints each file with its matching lines.
        find . -type f -exec /bin/sh -c '
            text=$1
            shift
            for file; do
                lines=$(grep -nF -e "$text" "$file" 2>/dev/null | cut -b 1-4200)
                [ "$lines" ] && printf "%s\0%s\0" "$file" "$lines"
            done
            exit 0
        ' sh "$4" {} + 2>/dev/null
        exit 0
        ;;
esac
