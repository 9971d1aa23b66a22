# Reads and writes databases, sheets and pictures with duckdb, SQLAlchemy, openpyxl, Pillow, OpenCV and SciPy.
# pip: duckdb sqlalchemy openpyxl pillow opencv-python-headless scipy numpy pandas
# options: --memory 2g

cat > t.py <<'END'
import duckdb, sqlalchemy, openpyxl, cv2, numpy as np, scipy.optimize, pandas as pd
from PIL import Image, ImageDraw, ImageFont
with duckdb.connect("d.duckdb") as db: db.sql("create table t as select range as n from range(1000)"); print(db.sql("select sum(n) from t").fetchall()); db.sql("copy t to 't.parquet'"); print(db.sql("from 't.parquet' limit 1"))
engine = sqlalchemy.create_engine("sqlite:///s.db")
with engine.begin() as c: c.execute(sqlalchemy.text("create table t (x)")); c.execute(sqlalchemy.text("insert into t values (:x)"), [{"x": 1}, {"x": 2}]); print(c.execute(sqlalchemy.text("select sum(x) from t")).scalar())
pd.DataFrame({"a": [1, 2]}).to_excel("t.xlsx"); print(pd.read_excel("t.xlsx").a.tolist())
image = Image.new("RGB", (40, 20)); ImageDraw.Draw(image).text((1, 1), "text", font=ImageFont.load_default()); image.save("t.png"); print(np.asarray(image).sum() > 0)
print(cv2.Canny(cv2.imread("t.png", 0), 50, 100).shape, scipy.optimize.minimize(lambda x: (x[0] - 3) ** 2, [0]).x.round(3))
END
python t.py; echo "status $?"; rm d.duckdb t.parquet s.db t.xlsx t.png
