# Serves with flask under gunicorn and with FastAPI under uvicorn, and asks with requests.
# pip: flask gunicorn fastapi uvicorn requests

cat > app.py <<'END'
import os, flask, fastapi
flasks = flask.Flask(__name__)
@flasks.route("/<name>")
def hello(name): return {"hello": name, "file": os.path.exists(__file__)}
fast = fastapi.FastAPI()
@fast.get("/add")
async def add(a: int, b: int): return {"sum": a + b}
END
cat > ask.py <<'END'
import requests, sys, time
for url in sys.argv[1:]:
    for attempt in range(100):
        try: answer = requests.get(url, timeout=10); break
        except requests.ConnectionError: time.sleep(0.1)
    print(answer.status_code, answer.json())
END
gunicorn -w 2 -b 127.0.0.1:8131 app:flasks > log 2>&1 & gunicorn=$!
python ask.py http://127.0.0.1:8131/me; kill -TERM $gunicorn; wait $gunicorn; echo "status $?"; grep -c "Booting worker" log
uvicorn --workers 2 --port 8132 app:fast > log 2>&1 & uvicorn=$!
python ask.py 'http://localhost:8132/add?a=40&b=2' 'http://localhost:8132/add?a=x&b=2' | cut -c1-60; kill -INT $uvicorn; wait $uvicorn; grep -c 'GET /add' log
rm -rf log __pycache__
