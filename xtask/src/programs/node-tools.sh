# Restarts a server with nodemon, keeps one with pm2, and uses native modules and WebSockets.
# has: node
# apt: nodejs npm
# npm: nodemon pm2 concurrently sharp ws

mkdir node_modules; ln -s "$TOOLS"/node/node_modules/* node_modules/
node -e 'require("sharp")({ create: { width: 8, height: 4, channels: 3, background: "red" } }).png().toBuffer().then(b => console.log(b.length > 50, b.subarray(1, 4).toString()))'
node -e 'const { WebSocketServer, WebSocket } = require("ws"); const s = new WebSocketServer({ port: 0, host: "127.0.0.1" }, () => { const c = new WebSocket("ws://127.0.0.1:" + s.address().port); c.on("open", () => c.send("hi")); c.on("message", m => { console.log(String(m)); process.exit(); }) }); s.on("connection", c => c.on("message", m => c.send("echo " + m)))'
concurrently --raw --group 'echo one' 'echo two; exit 3'; echo "status $?"
echo 'console.log("version 1"); setInterval(() => 0, 1000)' > app.js
nodemon --quiet app.js > log & sleep 4; echo 'console.log("version 2"); process.exit(0)' > app.js; sleep 4; kill %1; wait; grep version log
echo 'require("http").createServer((q, s) => s.end("kept\n")).listen(8137)' > app.js; export PM2_HOME=$PWD/pm2
pm2 start app.js --silent; node -e 'setTimeout(async () => console.log(await (await fetch("http://127.0.0.1:8137")).text()), 1500)'; pm2 jlist --silent | node -e 'console.log(JSON.parse(require("fs").readFileSync(0)).map(p => p.pm2_env.status))'; pm2 kill --silent
rm -r log pm2 node_modules
