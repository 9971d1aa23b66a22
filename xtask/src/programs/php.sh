# Runs PHP with mbstring, JSON, SQLite and its own web server.
# has: php curl
# apt: php-cli php-mbstring php-sqlite3 php-xml curl

cat > index.php <<'END'
<?php
echo mb_strtoupper("größe"), " ", mb_strlen("日本語"), "\n";
echo json_encode(["a" => [1, 2.5, null]]), "\n";
$db = new PDO("sqlite::memory:");
$db->exec("create table t (x)");
$db->exec("insert into t values (40), (2)");
echo $db->query("select sum(x) from t")->fetchColumn(), "\n";
echo (new SimpleXMLElement("<a><b>text</b></a>"))->b, "\n";
echo date_default_timezone_get(), "\n";
END
php index.php || exit
php -r 'echo ini_get("memory_limit"), " ", count(array_filter(get_loaded_extensions())), "\n";'
php -S 127.0.0.1:8123 index.php 2> server.log &
curl -s --retry 20 --retry-delay 1 --retry-connrefused http://127.0.0.1:8123/ | sed -n 1,2p
kill %1
grep -c 'GET /\|Accepted' server.log | grep -v '^0$' && rm server.log
