# Filters JSON and text with jq, sed, sort, join, xargs and find.
# has: jq
# apt: jq

echo '[{"n":"b","v":2},{"n":"a","v":1.5}]' | jq -c 'sort_by(.n) | map({(.n): .v}) | add, ([.[]] | length)'
echo '{"a":' | jq . ; echo "status $?"
jq -n 'env.HOME != null, (0 | todate), ([limit(3; range(10))] | add)'
seq 100 | xargs -P 4 -n 10 echo | sort -n | head -3
seq 3 | xargs -I{} sh -c 'exit {}'; echo "status $?"
mkdir -p a/b; echo x > a/b/f; find a -name f -exec sha1sum {} + ; find . -newermt 2000-01-01 -type d | sort
join <(printf '1 a\n2 b\n') <(printf '1 x\n2 y\n'); paste <(seq 3) <(seq 4 6); diff <(seq 3) <(seq 2 4)
echo "äöü" | sed 's/ö/o/; y/ä/a/' | tr a-z A-Z; printf 'b\nB\na\nÄ\n' | sort; printf '%s\n' *
seq 200000 | sort -r | sort -n | sha1sum
seq 100000 | split -l 30000 - part; wc -l part*; rm part*; yes | head -3
