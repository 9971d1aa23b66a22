# Serves HTTP with node, from a cluster of workers, and lists network interfaces.
# has: node
# apt: nodejs

cat > server.js <<'END'
const cluster = require("cluster"), http = require("http"), os = require("os");
if (cluster.isPrimary) {
  console.log("interfaces:", Object.keys(os.networkInterfaces()).includes("lo"));
  cluster.fork();
  cluster.on("listening", async (worker, { port }) => {
    const answer = await fetch(`http://localhost:${port}/a?b=1`);
    console.log(answer.status, await answer.text());
    worker.kill();
  });
  cluster.on("exit", (worker, code, signal) => console.log("worker ended", code, signal));
} else {
  http.createServer((request, response) => response.end(`you asked for ${request.url}`)).listen(0);
}
END
node server.js
node -p 'new Date(0).toLocaleString("en-GB", { timeZone: "Asia/Tokyo" })'
node -e 'require("fs").writeFileSync("out.txt", [1, 2, 3].map(x => x * 2).join())'
node -e 'require("worker_threads"); new (require("worker_threads").Worker)("console.log(6 * 7)", { eval: true })'
