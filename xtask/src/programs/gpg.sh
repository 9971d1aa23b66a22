# Makes a key of GnuPG, encrypts, signs and decrypts, with its agent.
# has: gpg
# apt: gpg gpg-agent
# hide: s/[0-9A-F]{16,40}/KEY/g; s/[0-9]{4}-[0-9]{2}-[0-9]{2}/DATE/; /Signature made/d

gpg --batch --quiet --passphrase '' --quick-generate-key me@example.org ed25519 sign 2> /dev/null; echo "status $?"
echo text > file
gpg --batch --quiet --detach-sign file && gpg --verify file.sig file; echo "status $?"
gpg --batch --quiet --symmetric --passphrase secret --pinentry-mode loopback -o file.gpg file; echo "status $?"
gpg --batch --quiet --decrypt --passphrase secret --pinentry-mode loopback file.gpg
gpg --list-keys --with-colons | cut -d: -f1 | tr '\n' ' '; echo
gpgconf --kill all; rm file.sig file.gpg
