# Uses SQLite with a write-ahead log, full-text search, a dump and two writers.
# has: sqlite3
# apt: sqlite3

sqlite3 db <<'END'
pragma journal_mode = wal;
create table t (id integer primary key, name text);
insert into t (name) values ('one'), ('two'), ('three');
create virtual table words using fts5(text);
insert into words values ('the quick fox'), ('the lazy dog');
select text from words where words match 'fox';
with recursive n(x) as (select 1 union all select x + 1 from n where x < 10000) select sum(x) from n;
select datetime(0, 'unixepoch'), json_extract('{"a":[1,2]}', '$.a[1]');
END
for i in 1 2 3 4; do sqlite3 -cmd '.timeout 10000' db "insert into t (name) values ('writer')" & done; wait
sqlite3 -header -csv db 'select name, count(*) as n from t group by name order by name'
sqlite3 db .dump | sqlite3 copy && sqlite3 copy 'pragma integrity_check; select count(*) from t'
sqlite3 db 'select nothing from t'; echo "status $?"
rm db* copy
