# Makes a database of MariaDB, starts it and queries it over a Unix socket.
# has: mariadbd mariadb mariadb-install-db
# apt: mariadb-server

mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal --skip-test-db > log 2>&1; echo "status $?"
mariadbd --no-defaults --datadir="$PWD/data" --socket="$PWD/s" --pid-file="$PWD/pid" --skip-networking > log 2>&1 &
sql() { mariadb --no-defaults -S "$PWD/s" -u root -N -e "$@"; }
for try in $(seq 300); do sql 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done
sql 'create database d; create table d.t (n int) engine=innodb; insert into d.t values (40), (2); select sum(n) from d.t'
sql 'select nothing'; echo "status $?"; mariadb-dump --no-defaults -S "$PWD/s" -u root d | grep -c INSERT
sql shutdown; wait; echo "status $?"; rm -r data log
