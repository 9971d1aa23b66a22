# Packs and unpacks with tar, zip, gzip, xz, zstd and cpio, and copies with rsync: links, modes and times.
# has: tar zip unzip gzip xz rsync cpio
# apt: tar zip unzip gzip xz-utils rsync cpio

mkdir -p d/sub; echo text > d/file; ln d/file d/hard; ln -s file d/link; chmod 640 d/file; printf '#!/bin/sh\n' > d/sub/run; chmod 755 d/sub/run; mkfifo d/fifo
touch -hd 2020-01-02T03:04:05Z d/link d/file d/sub/run d/sub d
tar --sort=name --owner=0 --group=0 --mtime=2020-01-01 -czf a.tgz d && tar tzf a.tgz && mkdir t && tar xzf a.tgz -C t && diff -r --no-dereference t/d/sub d/sub && ls -l t/d | tail -n +2 | awk '{ print $1, $2, $NF }'
rm d/fifo t/d/fifo
zip -qry a.zip d && unzip -q a.zip -d z && stat -c '%A %y %n' z/d/file z/d/sub/run && unzip -tq a.zip
rsync -aH --out-format='%i %n' d/ r/ && rsync -aHn --out-format='%i %n' d/ r/ && stat -c '%h %Y %n' r/file r/sub/run
rsync -a --delete --exclude file d/sub/ r/ && ls -A r
tar --sort=name -cJf a.txz d && tar xJOf a.txz d/file; find d | sort | cpio -o --quiet | cpio -it --quiet
seq 1000 | gzip -9n | sha1sum; cp -a d c && stat -c '%A %h %Y %n' c/file c/link; truncate -s 1M sparse; tar cSf s.tar sparse; stat -c %s s.tar
echo broken > b.tgz; tar xzf b.tgz; echo "status $?"
rm -r a.* s.tar d t z r c b.tgz sparse
