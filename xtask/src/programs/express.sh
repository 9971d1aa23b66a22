# Serves JSON with express, which logs each request, as a background server.
# has: node curl
# apt: nodejs npm curl
# npm: express

mkdir node_modules; ln -s "$TOOLS"/node/node_modules/* node_modules/
cat > server.mjs <<'END'
import express from "express";
const app = express().use(express.json());
app.use((request, response, next) => { console.log(request.method, request.url); next(); });
app.post("/double", (request, response) => response.json({ double: request.body.n * 2 }));
app.listen(8133);
END
nohup node server.mjs > log 2>&1 &
ask() { curl -s --retry 20 --retry-delay 1 --retry-connrefused -H 'Content-Type: application/json' "$@"; echo; }
ask -d '{"n": 21}' http://localhost:8133/double; ask -d '{' -o /dev/null -w '%{http_code}' http://localhost:8133/double
for i in $(seq 20); do ask -d "{\"n\": $i}" http://localhost:8133/double; done | sha1sum
kill %1; wait; grep -c 'POST' log; rm -r log node_modules
