# Asks an own local server with curl and wget: methods, redirects, cookies, uploads and a refused connection.
# has: curl python3
# apt: curl

cat > server.py <<'END'
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/moved":
            self.send_response(302); self.send_header("Location", "/there"); self.send_header("Content-Length", "0"); self.end_headers(); return
        self.answer(f"{self.command} {self.path} {self.headers.get('Cookie')}\n".encode())
    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])).upper())
    def answer(self, body):
        self.send_response(200); self.send_header("Set-Cookie", "k=v"); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8127), Handler).serve_forever()
END
python3 server.py 2> log &
curl -s --retry 20 --retry-delay 1 --retry-connrefused http://localhost:8127/first
curl -sL -c jar http://127.0.0.1:8127/moved; curl -s -b jar http://127.0.0.1:8127/again
curl -s -d 'posted text' http://127.0.0.1:8127/; echo; seq 100000 | curl -s -T - -X POST -H 'Content-Length: 588895' -H 'Transfer-Encoding:' http://127.0.0.1:8127/ | tail -1
curl --no-progress-meter -Z http://127.0.0.1:8127/[1-5] | sort; curl -s -o /dev/null -w '%{http_code} %{size_download}\n' http://127.0.0.1:8127/
kill %1; wait %1 2> /dev/null; curl -sS http://127.0.0.1:8127/ 2>&1 | sed 's/after [0-9]* ms/after TIME/'; echo "status ${PIPESTATUS[0]}"
rm jar; wc -l < log; rm log
