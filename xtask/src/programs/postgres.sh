# Makes a cluster of PostgreSQL, starts it and queries it over a Unix socket.
# has: initdb pg_ctl psql
# apt: postgresql
# hide: s/[0-9.]+ ms/TIME/

initdb -D data -U tester --no-sync > log 2>&1; echo "status $?"
pg_ctl -D data -o "-k $PWD -h '' -p 5499" -l server.log -w start > log; echo "status $?"
sql() { psql -h "$PWD" -p 5499 -U tester -d postgres -XAt -v ON_ERROR_STOP=1 "$@"; }
sql -c 'create table t (id serial primary key, doc jsonb)' -c "insert into t (doc) values ('{\"a\": 1}'), ('{\"a\": 41}')"
sql -c "select sum((doc->>'a')::int) from t" -c "select timestamptz 'epoch' at time zone 'Asia/Tokyo'"
sql -c 'select nothing'; echo "status $?"
for i in 1 2 3; do sql -c 'insert into t (doc) select jsonb_build_object($$a$$, g) from generate_series(1, 100) g' & done; wait
sql -c 'set max_parallel_workers_per_gather = 2' -c 'select count(*) from t'
sql -c 'copy t to stdout' | wc -l
pg_ctl -D data -m fast stop > log; echo "status $?"
rm -r data log server.log
