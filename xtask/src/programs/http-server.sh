# Serves a folder with http-server, listing directories and ranges.
# has: node curl
# apt: nodejs npm curl
# npm: http-server

mkdir -p site/sub; echo hello > site/sub/page.txt; echo '<h1>index</h1>' > site/index.html
http-server site -p 8125 -c-1 > server.log 2>&1 &
get() { curl -s --retry 20 --retry-delay 1 --retry-connrefused "$@"; }
get http://127.0.0.1:8125/
get http://127.0.0.1:8125/sub/page.txt -r 1-2; echo
get http://127.0.0.1:8125/none -o none.html -w '%{http_code}\n'; rm none.html
kill %1; wait %1
grep -c 'GET' server.log; grep -c 'Available on' server.log; rm server.log
