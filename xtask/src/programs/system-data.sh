# Reads what packages configure: man pages, mime types, fonts, services and protocols.
# has: man fc-list getent file
# apt: man-db fontconfig file

getent services https; getent protocols tcp; getent hosts localhost | awk '{ print $2 }'; getent passwd "$(id -u)" | cut -d: -f3 | grep -cx "$(id -u)"
fc-list | grep -c . | grep -vx 0 > /dev/null && echo fonts; python3 -c 'import mimetypes; print(mimetypes.guess_type("a.docx")[0])'
file -b --mime-type /bin/sh /etc/passwd; echo '#!/bin/sh' > s; file -b s; iconv -f utf8 -t latin1 <<< 'größe' | od -An -tx1
getconf PAGE_SIZE; getconf LONG_BIT; ldd /bin/sh | wc -l; editor=$(readlink -f /usr/bin/editor); [ -n "$editor" ] && echo editor; cat /etc/os-release | grep ^ID=; ls /etc/ssl/certs/ca-certificates.crt
