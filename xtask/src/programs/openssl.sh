# Makes a certificate with openssl, serves TLS with it, and encrypts.
# has: openssl curl
# apt: openssl curl ca-certificates

openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost 2> /dev/null; echo "status $?"
openssl s_server -quiet -accept 127.0.0.1:8128 -key key.pem -cert cert.pem -WWW > log 2>&1 &
echo served > page.txt
curl -s --retry 20 --retry-delay 1 --retry-connrefused --cacert cert.pem https://localhost:8128/page.txt
curl -s https://localhost:8128/page.txt; echo "status $?"
kill %1; wait %1 2> /dev/null
openssl verify -CAfile cert.pem cert.pem
echo secret | openssl enc -aes-256-cbc -pbkdf2 -k pass | openssl enc -d -aes-256-cbc -pbkdf2 -k pass
echo text | openssl dgst -sha256 -hex; openssl ciphers | tr : '\n' | wc -l
openssl dgst -sha256 -sign key.pem -out s page.txt && openssl dgst -sha256 -verify <(openssl x509 -in cert.pem -noout -pubkey) -signature s page.txt
ls "$(openssl version -d | cut -d'"' -f2)/certs" | wc -l; rm key.pem cert.pem log s
