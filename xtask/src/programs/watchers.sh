# Waits for changes of files with inotifywait and entr, and fetches with wget.
# has: inotifywait entr wget python3
# apt: inotify-tools entr wget

mkdir d; inotifywait -q -m -t 3 --format '%e %f' -e create,close_write,moved_to,delete d > log & sleep 1
echo x > d/a; mv d/a d/b; rm d/b; wait; cat log; rm log
echo d > list; (sleep 1; touch d/now; echo changed > watched) & echo begun > watched; ls watched | timeout 10 entr -n -p -z cat watched; echo "status $?"; wait
python3 -m http.server 8136 --bind 127.0.0.1 > log 2>&1 &
wget -q --tries 20 --retry-connrefused --waitretry 1 http://127.0.0.1:8136/list -O got; echo "status $?"; cat got; kill %?http; wait; rm log got
