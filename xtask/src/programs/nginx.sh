# Serves files and passes requests on with nginx, by a configuration of one's own.
# has: nginx curl
# apt: nginx-light curl

mkdir site run; echo page > site/page.txt
cat > nginx.conf <<END
daemon off; pid $PWD/run/pid; error_log $PWD/run/error.log; worker_processes 2;
events {}
http {
  types { text/plain txt; }
  access_log $PWD/run/access.log;
  client_body_temp_path run/a; proxy_temp_path run/b; fastcgi_temp_path run/c; uwsgi_temp_path run/d; scgi_temp_path run/e;
  server { listen 127.0.0.1:8134; root $PWD/site; location /api/ { proxy_pass http://127.0.0.1:8135/; } }
  server { listen 127.0.0.1:8135; return 200 "behind \$uri\n"; }
}
END
[ -e /etc/nginx/mime.types ] && echo "configuration of the system"
nginx -p "$PWD" -c nginx.conf -t 2>&1 | tail -1; nginx -p "$PWD" -c nginx.conf & 
get() { curl -s --retry 20 --retry-delay 1 --retry-connrefused "$@"; }
get http://127.0.0.1:8134/page.txt -w '%{content_type}\n'; get http://127.0.0.1:8134/api/x; get -o /dev/null -w '%{http_code}\n' http://127.0.0.1:8134/none
nginx -p "$PWD" -c nginx.conf -s quit 2> /dev/null; wait; echo "status $?"; wc -l < run/access.log; rm -r run nginx.conf
