# Starts a Jupyter Server, and a kernel by its REST interface.
# pip: jupyter_server ipykernel requests

jupyter server --no-browser --port 8138 --ServerApp.token=secret > log 2>&1 &
cat > t.py <<'END'
import requests, time
ask = lambda method, path, **more: requests.request(method, "http://127.0.0.1:8138/api/" + path, headers={"Authorization": "token secret"}, timeout=20, **more)
for attempt in range(200):
    try: ask("GET", "status"); break
    except requests.ConnectionError: time.sleep(0.1)
print(sorted(ask("GET", "kernelspecs").json()["kernelspecs"])[:1]); kernel = ask("POST", "kernels", json={"name": "python3"}).json()
print(kernel["name"], ask("PUT", "contents/t.txt", json={"type": "file", "format": "text", "content": "x"}).status_code, ask("DELETE", "kernels/" + kernel["id"]).status_code)
END
python t.py; kill -INT %1; kill %1; wait; cat t.txt; echo; rm log
