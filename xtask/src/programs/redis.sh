# Runs a server of redis over TCP and a socket, with a transaction, a script and a saved dump.
# has: redis-server redis-cli
# apt: redis-server

redis-server --port 6399 --unixsocket "$PWD/redis.sock" --daemonize no --save '' > server.log 2>&1 &
for try in $(seq 100); do redis-cli -p 6399 ping > /dev/null 2>&1 && break; sleep 0.1; done
cli() { redis-cli -s "$PWD/redis.sock" "$@"; }
cli set key value; cli get key; redis-cli -p 6399 incrby count 41; cli incr count
printf 'multi\nlpush list a b c\nlrange list 0 -1\nexec\n' | cli
cli eval 'return redis.call("get", KEYS[1]) .. "!"' 1 key
cli save; cli shutdown nosave; wait; echo "status $?"
ls; rm -f dump.rdb server.log redis.sock
