# Formats times and text in other time zones and locales.
# has: python3 date locale
# apt: tzdata

date -u -d @0; TZ=Asia/Tokyo date -d @0; TZ=America/New_York date -d 2024-07-01T00:00:00Z '+%F %T %Z'; date -d @0
export TZ=Europe/Berlin; date -d 2024-01-01T00:00:00Z; python3 -c 'import time; print(time.localtime(0)[:5], time.tzname)'
python3 -c 'import zoneinfo, datetime; print(datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Asia/Kolkata")).isoformat(), len(zoneinfo.available_timezones()) > 400)'
perl -e 'use POSIX; print strftime("%H %Z\n", localtime(0))'; node -p 'new Date(0).getHours()' 2> /dev/null
locale; locale -a | sort; LC_ALL=C ls --help > /dev/null; LC_ALL=de_DE.UTF-8 sh -c 'printf "%.1f\n" 1.5'
python3 -c 'import locale, sys; print(locale.getpreferredencoding(), sys.stdout.encoding, sys.getfilesystemencoding())'
LC_ALL=C python3 -c 'print("größe")'; touch 'größe €.txt'; ls; python3 -c 'import os; print(os.listdir("."))'
printf 'größe' | wc -m; cal 1 2024 2> /dev/null; TZ=Nowhere/City date -d @0 +%Z
